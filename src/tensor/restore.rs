//! A slice of a tensor from its layouts as plain numbers, which a pickle of a handle has.

use super::Tensor;
use crate::error::{Code, Error, Result};
use crate::layout::{Layout, numel};

impl Tensor {
    /// The slice of this whole tensor with these layouts of the elements and of the scales. The numbers are not trusted: fails where
    /// they lie outside the tensor or contradict each other.
    pub(crate) fn restored(self, layout: Layout, channel_layout: Option<Layout>) -> Result<Tensor> {
        let is_right = is_within(&self.layout, &layout, self.is_meta())
            && match (self.channel_layout.as_deref(), &channel_layout) {
                (None, None) => true,
                (Some(whole), Some(part)) => part.shape == layout.shape && is_within(whole, part, false),
                _ => false,
            };
        if !is_right {
            return Err(Error::new(Code::Value, "the slice in the pickle is not one of the tensor")
                .in_member(self.name()));
        }
        Ok(Tensor { layout, channel_layout: channel_layout.map(Box::new), ..self })
    }
}

/// Whether a layout has only elements of another one's range. Without elements, and on the meta device, offset and strides mean
/// nothing.
fn is_within(whole: &Layout, part: &Layout, is_meta: bool) -> bool {
    let is_number = |number: &u64| i64::try_from(*number).is_ok();
    if part.shape.len() != part.strides.len()
        || numel(&part.shape).is_none()
        || !part.strides.iter().chain([&part.offset]).all(is_number)
    {
        return false;
    }
    let is_inside = part.offset >= whole.offset && part.end().is_some_and(|end| Some(end) <= whole.end());
    is_inside || is_meta || part.numel() == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(shape: &[u64], strides: &[u64], offset: u64) -> Layout {
        Layout { shape: shape.into(), strides: strides.into(), offset }
    }

    #[test]
    fn a_slice_lies_in_its_tensor() {
        let whole = layout(&[4, 3], &[3, 1], 2);
        for part in
            [layout(&[2], &[3], 2), layout(&[3, 4], &[1, 3], 2), layout(&[], &[], 13), layout(&[0], &[9], 99)]
        {
            assert!(is_within(&whole, &part, false), "{part:?}");
        }
        for part in [
            layout(&[2], &[3], 1),
            layout(&[13], &[1], 2),
            layout(&[2], &[12], 2),
            layout(&[2], &[u64::MAX], 2),
            layout(&[2], &[], 2),
            layout(&[1 << 32, 1 << 32], &[0, 0], 2),
            layout(&[], &[], 14),
            layout(&[1], &[u64::MAX], 2),
        ] {
            assert!(!is_within(&whole, &part, false), "{part:?}");
        }
        assert!(is_within(&whole, &layout(&[2], &[99], 0), true));
    }
}
