//! What a cast to fp8 does with values out of range.

/// How f32 -> fp8 converts values out of range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Overflow {
    /// To NaN, or to infinity where the format has one (e5m2): the OCP rule, as in ml_dtypes.
    #[default]
    Nan,
    /// To the largest finite value with the same sign (saturating), also from an infinity. NaN stays NaN.
    Saturate,
}
