//! Sums of products of the numbers of two tensors: their norms, the distance and the angle between them.

use crate::kernel::arch::Level;

/// Sums over the pairs of elements that are both finite, in float64. A complex number is two numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Products {
    /// The numbers of each tensor.
    pub numbers: u64,
    /// The squares of the first tensor's numbers.
    pub one: f64,
    /// The squares of the second tensor's numbers.
    pub two: f64,
    /// Each number of the first tensor times the one of the second.
    pub product: f64,
    /// The squares of the differences.
    pub difference: f64,
}

impl Products {
    /// Those of numbers in the byte order of this machine; an element is one of them, or two if they `are_complex`.
    pub fn of(ones: &[[u8; 8]], twos: &[[u8; 8]], are_complex: bool) -> Products {
        let all = Level::used().products(ones, twos);
        if all.into_iter().all(f64::is_finite) {
            return Products::new(ones.len(), all);
        }
        let is_finite =
            |element: &[[u8; 8]]| element.iter().all(|&part| f64::from_ne_bytes(part).is_finite());
        let size = 1 + usize::from(are_complex);
        let elements = ones.chunks_exact(size).zip(twos.chunks_exact(size));
        let (ones, twos): (Vec<_>, Vec<_>) =
            elements.filter(|(one, two)| is_finite(one) && is_finite(two)).unzip();
        let (ones, twos) = (ones.concat(), twos.concat());
        Products::new(ones.len(), Level::used().products(&ones, &twos))
    }

    fn new(numbers: usize, [one, two, product, difference]: [f64; 4]) -> Products {
        Products { numbers: numbers as u64, one, two, product, difference }
    }

    /// Adds those of other elements.
    pub fn add(&mut self, other: &Products) {
        self.numbers += other.numbers;
        self.one += other.one;
        self.two += other.two;
        self.product += other.product;
        self.difference += other.difference;
    }
}
