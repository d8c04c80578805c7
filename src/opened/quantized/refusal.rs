//! Why codes are not read as numbers.

use crate::error::{Code, Error};

/// A refusal: these tensors are not what the scheme has.
pub(super) fn refused(text: impl Into<String>) -> Error {
    Error::new(Code::QuantUnknown, text)
}

/// A refusal: a tensor has not the shape that the others demand.
pub(super) fn unfit(text: impl Into<String>) -> Error {
    Error::new(Code::TensorBounds, text)
}

/// The quotient, if there is no rest.
pub(super) fn exact(number: Option<u64>, divisor: u64) -> Option<u64> {
    let number = number?;
    number.checked_rem(divisor).filter(|&rest| rest == 0).and_then(|_| number.checked_div(divisor))
}
