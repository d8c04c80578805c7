//! A loop over the numbers of a block for statistics.
//!
//! Sums are kept in the same lanes at every level, so all levels give the same results, bit for bit.

use super::Instructions;

/// The lanes of a sum.
const LANES: usize = 16;

/// What one pass over numbers finds. Sums are not finite if a number is not finite.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernel) struct Extent {
    pub(in crate::kernel) min: f64,
    pub(in crate::kernel) max: f64,
    /// The sum of the distances from a pivot.
    pub(in crate::kernel) distances: f64,
    /// The sum of the squared distances.
    pub(in crate::kernel) squares: f64,
}

/// The extent of numbers, with their distances from `pivot`; `load` reads one.
#[inline(always)]
pub(super) fn extent<I: Instructions, const N: usize>(
    numbers: &[[u8; N]],
    pivot: f64,
    load: impl Fn([u8; N]) -> f64,
) -> Extent {
    let mut found = Extent { min: f64::INFINITY, max: f64::NEG_INFINITY, distances: 0.0, squares: 0.0 };
    I::run(|| {
        // The lanes are not an array of structs, and are only indexed by constants, so that they stay in registers.
        let (mut sums, mut squares) = ([0.0; LANES], [0.0; LANES]);
        let (mut mins, mut maxs) = ([f64::INFINITY; LANES], [f64::NEG_INFINITY; LANES]);
        let (vectors, rest) = numbers.as_chunks::<LANES>();
        for vector in vectors {
            for lane in 0..LANES {
                let number = load(vector[lane]);
                let distance = number - pivot;
                sums[lane] += distance;
                squares[lane] += distance * distance;
                mins[lane] = if number < mins[lane] { number } else { mins[lane] };
                maxs[lane] = if number > maxs[lane] { number } else { maxs[lane] };
            }
        }
        found.distances = sums.iter().sum();
        found.squares = squares.iter().sum();
        found.min = mins.into_iter().fold(f64::INFINITY, f64::min);
        found.max = maxs.into_iter().fold(f64::NEG_INFINITY, f64::max);
        for &number in rest {
            let number = load(number);
            let distance = number - pivot;
            found.distances += distance;
            found.squares += distance * distance;
            found.min = found.min.min(number);
            found.max = found.max.max(number);
        }
    });
    found
}
