//! Loops over the numbers of a block for statistics, and over those of two.
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

/// Sums over the float64 of two blocks of equal length: squares of the first and of the second, products, squared differences.
#[inline(always)]
pub(super) fn products<I: Instructions>(ones: &[[u8; 8]], twos: &[[u8; 8]]) -> [f64; 4] {
    let mut found = [0.0; 4];
    I::run(|| {
        const LANES: usize = 8;
        let (mut one_sums, mut two_sums) = ([0.0; LANES], [0.0; LANES]);
        let (mut products, mut differences) = ([0.0; LANES], [0.0; LANES]);
        let ((ones, one_rest), (twos, two_rest)) = (ones.as_chunks::<LANES>(), twos.as_chunks::<LANES>());
        for (ones, twos) in ones.iter().zip(twos) {
            for lane in 0..LANES {
                let (one, two) = (f64::from_ne_bytes(ones[lane]), f64::from_ne_bytes(twos[lane]));
                let difference = one - two;
                one_sums[lane] += one * one;
                two_sums[lane] += two * two;
                products[lane] += one * two;
                differences[lane] += difference * difference;
            }
        }
        found = [one_sums, two_sums, products, differences].map(|sums| sums.iter().sum());
        for (&one, &two) in one_rest.iter().zip(two_rest) {
            let (one, two) = (f64::from_ne_bytes(one), f64::from_ne_bytes(two));
            found[0] += one * one;
            found[1] += two * two;
            found[2] += one * two;
            found[3] += (one - two) * (one - two);
        }
    });
    found
}
