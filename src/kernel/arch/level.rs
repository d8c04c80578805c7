//! Levels: sets of instructions that the machine may have, and the kernels written for them.

use std::fmt;

use once_cell::race::OnceBox;

use super::{Overflow, Row};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};
use super::{complex, each, generic::Generic, lines::Lines, row};
use crate::dtype::DType;

/// A set of instructions that this machine has. The results are the same, to the bit, at every level.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(Isa);

/// Only [`Level::available`] makes the variants above the first, after it has detected them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Isa {
    Generic,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// Every name that `RUSTLOAD_ISA` may have, in order.
const NAMES: [&str; 3] = ["generic", "avx2", "avx512"];

/// Evaluates an expression with `$isa` as the type of a level's instructions.
macro_rules! at {
    ($level:expr, $isa:ident => $what:expr) => {
        match $level.0 {
            Isa::Generic => {
                type $isa = Generic;
                $what
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                type $isa = Avx2;
                $what
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                type $isa = Avx512;
                $what
            }
        }
    };
}

impl Level {
    /// The level that is used: the highest one, or what the environment variable `RUSTLOAD_ISA` says, read once.
    ///
    /// `generic`, `avx2` (with F16C) and `avx512` (F, BW, DQ and VL) are known. Where the machine lacks a level, the next lower
    /// one that it has is used; any other value counts as unset.
    pub fn used() -> Level {
        static USED: OnceBox<Level> = OnceBox::new();
        *USED.get_or_init(|| Box::new(Level::chosen(std::env::var("RUSTLOAD_ISA").ok().as_deref())))
    }

    /// The level for a value of `RUSTLOAD_ISA`.
    fn chosen(name: Option<&str>) -> Level {
        let rank = |name: &str| NAMES.iter().position(|known| *known == name);
        let most = name.and_then(rank).unwrap_or(NAMES.len());
        let allowed = |level: &Level| rank(level.name()).is_some_and(|rank| rank <= most);
        Level::available().into_iter().rfind(allowed).unwrap_or(Level(Isa::Generic))
    }

    /// Every level of this machine, lowest first.
    pub fn available() -> Vec<Level> {
        #[cfg(target_arch = "x86_64")]
        if super::avx512::is_detected() {
            return vec![Level(Isa::Generic), Level(Isa::Avx2), Level(Isa::Avx512)];
        } else if super::avx2::is_detected() {
            return vec![Level(Isa::Generic), Level(Isa::Avx2)];
        }
        vec![Level(Isa::Generic)]
    }

    /// As `RUSTLOAD_ISA` has it.
    pub fn name(self) -> &'static str {
        match self.0 {
            Isa::Generic => "generic",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
        }
    }

    /// The row kernel between two real dtypes, where one does it in one go.
    ///
    /// There is always one between bool, ints, f32 and f64, and between f32 and a narrow float; the rest goes through f32.
    pub(in crate::kernel) fn row(self, from: DType, to: DType, overflow: Overflow) -> Option<Row> {
        at!(self, I => row::<I>(from, to, overflow))
    }

    /// Two bool bytes in, one out: whether either is set.
    pub(in crate::kernel) fn either(self) -> Row {
        at!(self, I => complex::either::<I>())
    }

    /// The row that keeps the real halves, each a `half`, of complex numbers.
    pub(in crate::kernel) fn real_halves(self, half: DType) -> Option<Row> {
        at!(self, I => complex::real_halves::<I>(half))
    }

    /// The row that makes complex numbers of reals, each a `half`, with imaginary halves of +0.
    pub(in crate::kernel) fn with_zero_halves(self, half: DType) -> Option<Row> {
        at!(self, I => complex::with_zero_halves::<I>(half))
    }

    /// The transpose of panels of elements of a size.
    pub(in crate::kernel) fn lines(self, size: usize) -> Lines {
        at!(self, I => <I as super::Instructions>::lines(size))
    }

    /// Replaces each element by `one` of it; a rest shorter than one stays as it is.
    pub(in crate::kernel) fn each<const N: usize>(self, data: &mut [u8], one: impl Fn([u8; N]) -> [u8; N]) {
        at!(self, I => each::<I, N>(data, one));
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
