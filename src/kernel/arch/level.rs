//! SIMD levels: sets of CPU features, and dispatch to the kernels compiled for them.

use std::fmt;

use once_cell::race::OnceBox;

#[cfg(target_arch = "aarch64")]
use super::neon::Neon;
use super::{CopyRows, Groups, Job, Lookup, Overflow, RowKernel, Table};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};
use super::{complex, generic::Generic, map_in_place, portable_transpose::PanelTranspose, row_kernel};
use super::{statistics, statistics::Extent};
use crate::dtype::DType;

/// A SIMD level that this CPU has. All levels give the same results, bit for bit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(Isa);

/// Only [`Level::available`] constructs the variants above `Generic`, after it has detected their CPU features.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Isa {
    Generic,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// The values of `RUSTLOAD_ISA`, lowest level first.
#[cfg(not(target_arch = "aarch64"))]
const NAMES: &[&str] = &["generic", "avx2", "avx512"];
#[cfg(target_arch = "aarch64")]
const NAMES: &[&str] = &["generic", "neon"];

/// Evaluates an expression with `$isa` as the [`Instructions`](super::Instructions) type of a level.
macro_rules! dispatch {
    ($level:expr, $isa:ident => $what:expr) => {
        match $level.0 {
            Isa::Generic => {
                type $isa = Generic;
                $what
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => {
                type $isa = Neon;
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
    /// The level in use: the highest one of this CPU, or the one that the environment variable `RUSTLOAD_ISA` names. The variable
    /// is read once per process.
    ///
    /// Its values are `generic`; on x86 `avx2` (with F16C) and `avx512` (F, BW, DQ and VL); on Arm `neon`. Where the CPU lacks a
    /// level, the next lower one that it has is used; any other value counts as unset.
    pub fn used() -> Level {
        static USED: OnceBox<Level> = OnceBox::new();
        *USED.get_or_init(|| Box::new(Level::from_env_value(std::env::var("RUSTLOAD_ISA").ok().as_deref())))
    }

    /// The level for a value of `RUSTLOAD_ISA`.
    fn from_env_value(name: Option<&str>) -> Level {
        let rank = |name: &str| NAMES.iter().position(|known| *known == name);
        let highest = name.and_then(rank).unwrap_or(NAMES.len());
        let allowed = |level: &Level| rank(level.name()).is_some_and(|rank| rank <= highest);
        Level::available().into_iter().rfind(allowed).unwrap_or(Level(Isa::Generic))
    }

    /// All levels of this CPU, lowest first.
    pub fn available() -> Vec<Level> {
        #[cfg(target_arch = "x86_64")]
        if super::avx512::is_detected() {
            return vec![Level(Isa::Generic), Level(Isa::Avx2), Level(Isa::Avx512)];
        } else if super::avx2::is_detected() {
            return vec![Level(Isa::Generic), Level(Isa::Avx2)];
        }
        #[cfg(target_arch = "aarch64")]
        return vec![Level(Isa::Generic), Level(Isa::Neon)];
        #[cfg(not(target_arch = "aarch64"))]
        vec![Level(Isa::Generic)]
    }

    /// The name, as in `RUSTLOAD_ISA`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Isa::Generic => "generic",
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => "neon",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => "avx512",
        }
    }

    /// The row kernel that converts between two real dtypes directly; `None` where the conversion needs f32 in between.
    ///
    /// There is one between any two of bool, ints, f32 and f64, and between f32 and each narrow float.
    pub(in crate::kernel) fn row_kernel(
        self,
        from: DType,
        to: DType,
        overflow: Overflow,
    ) -> Option<RowKernel> {
        dispatch!(self, I => row_kernel::<I>(from, to, overflow))
    }

    /// The row kernel that ORs each pair of bool bytes into one.
    pub(in crate::kernel) fn or_pairs(self) -> RowKernel {
        dispatch!(self, I => complex::or_pairs::<I>())
    }

    /// The row kernel that keeps the real part, a `part`, of each complex number; `None` where there is no such complex dtype.
    pub(in crate::kernel) fn real_parts(self, part: DType) -> Option<RowKernel> {
        dispatch!(self, I => complex::real_parts::<I>(part))
    }

    /// The row kernel that makes a complex number of each real, a `part`, with the imaginary part +0; `None` where there is no
    /// such complex dtype.
    pub(in crate::kernel) fn with_zero_imaginary(self, part: DType) -> Option<RowKernel> {
        dispatch!(self, I => complex::with_zero_imaginary::<I>(part))
    }

    /// The transpose of panels whose elements have `element_size` bytes.
    pub(in crate::kernel) fn panel_transpose(self, element_size: usize) -> PanelTranspose {
        dispatch!(self, I => <I as super::Instructions>::panel_transpose(element_size))
    }

    /// The copy of rows with non-temporal stores, where the level has them.
    pub(in crate::kernel) fn copy_rows(self) -> CopyRows {
        dispatch!(self, I => <I as super::Instructions>::copy_rows())
    }

    /// Looks up codes of 4 bits in the table of their group.
    pub(in crate::kernel) fn look_up(self, codes: Lookup<'_>, tables: &[Table]) {
        dispatch!(self, I => <I as super::Instructions>::look_up(codes, tables));
    }

    /// Looks up codes of 4 bits in what their groups say, if that takes no tables. Returns whether it did.
    pub(in crate::kernel) fn scale_and_look_up(self, codes: Lookup<'_>, groups: Groups<'_>) -> bool {
        dispatch!(self, I => <I as super::Instructions>::scale_and_look_up(codes, groups))
    }

    /// Runs `job`, compiled for the level's instructions.
    #[inline(always)]
    pub(in crate::kernel) fn run(self, job: impl Job) {
        dispatch!(self, I => <I as super::Instructions>::run(job));
    }

    /// Applies `convert` to each element in place. A remainder shorter than an element stays as it is.
    pub(in crate::kernel) fn map_in_place<const N: usize>(
        self,
        data: &mut [u8],
        convert: impl Fn([u8; N]) -> [u8; N],
    ) {
        dispatch!(self, I => map_in_place::<I, N>(data, convert));
    }

    /// The extent of numbers, with their distances from `pivot`; `load` reads one.
    pub(in crate::kernel) fn extent<const N: usize>(
        self,
        numbers: &[[u8; N]],
        pivot: f64,
        load: impl Fn([u8; N]) -> f64,
    ) -> Extent {
        dispatch!(self, I => statistics::extent::<I, N>(numbers, pivot, load))
    }

    /// Sums over the float64 of two blocks of equal length: squares of the first and of the second, products, squared differences.
    pub(in crate::kernel) fn products(self, ones: &[[u8; 8]], twos: &[[u8; 8]]) -> [f64; 4] {
        dispatch!(self, I => statistics::products::<I>(ones, twos))
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
