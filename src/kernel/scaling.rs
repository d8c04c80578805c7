//! Applies the scales, zero points and offsets of groups to numbers.

use std::hint::black_box;

use super::arch::{Job, Level};
use super::codes::CODES_OF_4_BITS;

/// Multiplies numbers by their scales, after their zero points were subtracted. A scale is that of `width` numbers, the first of
/// `width - skip`.
pub fn rescale(numbers: &mut [f32], zeros: Option<&[f32]>, scales: &[f32], width: usize, skip: usize) {
    Level::used().run(Rescale { numbers, zeros, scales, width, skip });
}

/// The arguments of [`rescale`].
struct Rescale<'a> {
    numbers: &'a mut [f32],
    zeros: Option<&'a [f32]>,
    scales: &'a [f32],
    width: usize,
    skip: usize,
}

impl Job for Rescale<'_> {
    #[inline(always)]
    fn run(self) {
        let Rescale { numbers, zeros, scales, width, skip } = self;
        if width == 1 {
            match zeros {
                None => numbers.iter_mut().zip(scales).for_each(|(number, scale)| *number *= scale),
                Some(zeros) => {
                    for ((number, scale), zero) in numbers.iter_mut().zip(scales).zip(zeros) {
                        *number = (*number - zero) * scale;
                    }
                }
            }
            return;
        }
        let (mut rest, mut len) = (numbers, width - skip);
        for (at, &scale) in scales.iter().enumerate() {
            let zero = zeros.and_then(|zeros| zeros.get(at)).copied();
            let (group, others) = rest.split_at_mut(len.min(rest.len()));
            match zero {
                None => group.iter_mut().for_each(|number| *number *= scale),
                Some(zero) => group.iter_mut().for_each(|number| *number = (*number - zero) * scale),
            }
            (rest, len) = (others, width);
        }
    }
}

/// The numbers of all codes of 4 bits after [`rescale`], for each group.
pub fn rescale_all(
    numbers: &[f32; CODES_OF_4_BITS],
    zeros: Option<&[f32]>,
    scales: &[f32],
    out: &mut [[f32; CODES_OF_4_BITS]],
) {
    Level::used().run(RescaleAll { numbers, zeros, scales, out });
}

/// The arguments of [`rescale_all`].
struct RescaleAll<'a> {
    numbers: &'a [f32; CODES_OF_4_BITS],
    zeros: Option<&'a [f32]>,
    scales: &'a [f32],
    out: &'a mut [[f32; CODES_OF_4_BITS]],
}

impl Job for RescaleAll<'_> {
    #[inline(always)]
    fn run(self) {
        let RescaleAll { numbers, zeros, scales, out } = self;
        // Of a scale that it knows, the compiler makes vectors of several groups, and takes 4 times as long to store their parts.
        let groups = out.iter_mut().zip(scales.iter().map(|&scale| black_box(scale)));
        match zeros {
            None => groups.for_each(|(out, scale)| *out = numbers.map(|number| number * scale)),
            Some(zeros) => groups.zip(zeros).for_each(|((out, scale), zero)| {
                *out = numbers.map(|number| (number - zero) * scale);
            }),
        }
    }
}

/// Adds to numbers what their groups, as those of [`rescale`], have.
pub fn shift(numbers: &mut [f32], offsets: &[f32], width: usize, skip: usize) {
    let (mut rest, mut len) = (numbers, width - skip);
    for offset in offsets {
        let (group, others) = rest.split_at_mut(len.min(rest.len()));
        group.iter_mut().for_each(|number| *number += offset);
        (rest, len) = (others, width);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_that_of_a_group_of_numbers() {
        let mut numbers = [1.0, 2.0, 3.0, 4.0, 5.0];
        rescale(&mut numbers, Some(&[1.0, 2.0, 0.0]), &[10.0, 100.0, 0.5], 2, 1);
        assert_eq!(numbers, [0.0, 0.0, 100.0, 2.0, 2.5]);
        rescale(&mut numbers, None, &[1.0, 1.0, 2.0, 3.0, 4.0], 1, 0);
        assert_eq!(numbers, [0.0, 0.0, 200.0, 6.0, 10.0]);
    }
}
