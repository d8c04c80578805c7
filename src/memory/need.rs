//! Compares the memory that results need with what the process may still take, before anything is allocated.
#![forbid(unsafe_code)]

use std::fmt;
use std::path::PathBuf;

use super::{Cgroup, Memory};
use crate::error::{Error, Result};

/// Results of fewer bytes are made without a look at what is left, which would take as long as making them.
const CHECKED_MIN_BYTES: u64 = 64 << 20;

/// The memory that this process may still take, and what leaves no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usable {
    /// Bytes.
    pub bytes: u64,
    /// What bounds them.
    pub bound: Bound,
}

/// What bounds the memory that a process may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The limit of the cgroup with this directory.
    Cgroup(PathBuf),
    /// RLIMIT_AS.
    AddressSpace,
    /// RLIMIT_DATA.
    Data,
    /// The machine's memory, without its swap.
    Machine,
    /// The limit `available_memory`.
    Given,
    /// The memory of a GPU.
    #[cfg(feature = "cuda")]
    Gpu,
}

impl Bound {
    /// A word for it.
    pub fn name(&self) -> &'static str {
        match self {
            Bound::Cgroup(_) => "cgroup",
            Bound::AddressSpace => "RLIMIT_AS",
            Bound::Data => "RLIMIT_DATA",
            Bound::Machine => "machine",
            Bound::Given => "available_memory",
            #[cfg(feature = "cuda")]
            Bound::Gpu => "GPU",
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::Cgroup(path) => write!(f, "the limit of the cgroup {}", path.display()),
            Bound::AddressSpace | Bound::Data => f.write_str(self.name()),
            #[cfg(feature = "cuda")]
            Bound::Gpu => f.write_str("the memory of the GPU"),
            Bound::Machine => f.write_str("the memory of the machine"),
            Bound::Given => f.write_str("the limit available_memory"),
        }
    }
}

impl Memory {
    /// The memory that the process may still take: the least of what the limit of its cgroup, RLIMIT_AS and RLIMIT_DATA leave, and
    /// of what the machine has available. Page cache that can be dropped counts as available, swap does not. `None` where the
    /// system says nothing.
    pub fn usable(&self) -> Option<Usable> {
        let group = self.group.as_ref().map(|group| (group.headroom(), Bound::Cgroup(group.path.clone())));
        let bounds = [
            group,
            self.address_space.map(|bytes| (bytes, Bound::AddressSpace)),
            self.data.map(|bytes| (bytes, Bound::Data)),
            (self.total > 0).then_some((self.available, Bound::Machine)),
        ];
        let least = bounds.into_iter().flatten().min_by_key(|(bytes, _)| *bytes);
        least.map(|(bytes, bound)| Usable { bytes, bound })
    }
}

/// Whether [`check`] accepts `needed` bytes without a release.
pub fn fits(needed: u64, given: u64) -> bool {
    match given {
        0 => needed < CHECKED_MIN_BYTES || Memory::now().usable().is_none_or(|found| needed <= found.bytes),
        bytes => needed <= bytes,
    }
}

/// Fails with [`Code::NotEnoughMemory`](crate::error::Code::NotEnoughMemory) where results of `needed` bytes are more than the
/// process may take: `given` bytes, the limit `available_memory`, or where that is 0 what [`Memory::usable`] says.
///
/// `release` frees memory that is kept for later results; it is called before an error.
pub fn check(needed: u64, given: u64, release: impl FnOnce()) -> Result<()> {
    match given {
        0 if needed < CHECKED_MIN_BYTES => Ok(()),
        0 => check_against(needed, || Memory::now().usable(), release),
        bytes => check_against(needed, || Some(Usable { bytes, bound: Bound::Given }), || {}),
    }
}

/// As [`check`] for results of `needed` bytes on a GPU that has `free` bytes left: they may take as many, or `given` ones.
#[cfg(feature = "cuda")]
pub fn check_gpu(needed: u64, free: u64, given: u64) -> Result<()> {
    let bound = if given > free { Bound::Given } else { Bound::Gpu };
    check_against(needed, || Some(Usable { bytes: given.max(free), bound: bound.clone() }), || {})
}

fn check_against(needed: u64, usable: impl Fn() -> Option<Usable>, release: impl FnOnce()) -> Result<()> {
    let too_little = || usable().filter(|found| needed > found.bytes);
    if too_little().is_none() {
        return Ok(());
    }
    release();
    match too_little() {
        None => Ok(()),
        Some(Usable { bytes, bound }) => {
            let text = format!(
                "the results need {}, and {} are available ({bound})",
                in_binary_units(needed),
                in_binary_units(bytes)
            );
            Err(Error::not_enough_memory(text, needed, bytes, bound.name()))
        }
    }
}

/// A size for people: `1.5 GiB`.
fn in_binary_units(nbytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if nbytes < 1024 {
        return format!("{nbytes} B");
    }
    // Tenths of a unit, rounded down, so that what is available is not overstated.
    let mut tenths = u128::from(nbytes) * 10 / 1024;
    let mut units = UNITS.iter();
    let mut unit = units.next();
    while tenths >= 10_240
        && let Some(next) = units.next()
    {
        (tenths, unit) = (tenths / 1024, Some(next));
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, unit.unwrap_or(&"B"))
}

impl Cgroup {
    /// Bytes that may still be used.
    pub fn headroom(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::error::{Code, Subject};

    const MIB: u64 = 1 << 20;

    fn memory() -> Memory {
        Memory { total: 900 * MIB, available: 800 * MIB, ..Memory::default() }
    }

    #[test]
    fn the_least_bound_rules() {
        let with = |change: fn(&mut Memory)| {
            let mut memory = memory();
            change(&mut memory);
            memory.usable().map(|found| (found.bytes / MIB, found.bound))
        };
        let group = |memory: &mut Memory| {
            memory.group = Some(Cgroup { limit: 300 * MIB, used: 100 * MIB, path: "/g".into() });
        };
        assert_eq!(with(|_| {}), Some((800, Bound::Machine)));
        assert_eq!(with(group), Some((200, Bound::Cgroup("/g".into()))));
        assert_eq!(with(|memory| memory.address_space = Some(700 * MIB)), Some((700, Bound::AddressSpace)));
        assert_eq!(with(|memory| memory.data = Some(0)), Some((0, Bound::Data)));
        assert_eq!(with(|memory| memory.data = Some(810 * MIB)), Some((800, Bound::Machine)));
        assert_eq!(Memory::default().usable(), None);
    }

    #[test]
    fn too_little_memory_is_an_error_after_kept_memory_was_released() {
        let left = Cell::new(100 * MIB);
        let usable = || Some(Usable { bytes: left.get(), bound: Bound::Data });
        let released = Cell::new(0);
        let check = |needed, frees: u64| {
            check_against(needed, usable, || {
                released.set(released.get() + 1);
                left.set(left.get() + frees);
            })
        };
        assert!(check(100 * MIB, 0).is_ok() && released.get() == 0);
        assert!(check(101 * MIB, MIB).is_ok() && released.get() == 1);
        let error = check(1536 * MIB, 0).unwrap_err();
        assert_eq!((error.code(), released.get()), (Code::NotEnoughMemory, 2));
        assert_eq!(error.to_string(), "the results need 1.5 GiB, and 101.0 MiB are available (RLIMIT_DATA)");
        let expected = Subject::Memory { needed: 1536 * MIB, available: 101 * MIB, bound: "RLIMIT_DATA" };
        assert_eq!(error.subject(), &expected);
        assert!(check_against(u64::MAX, || None, || {}).is_ok());
    }

    #[test]
    fn a_given_limit_counts_for_small_results_too_and_replaces_what_is_measured() {
        let code = |needed, given| super::check(needed, given, || {}).err().map(|error| error.code());
        assert_eq!((code(5, 5), code(6, 5)), (None, Some(Code::NotEnoughMemory)));
        assert_eq!((code(u64::MAX, u64::MAX), code(CHECKED_MIN_BYTES - 1, 0)), (None, None));
    }

    #[test]
    fn sizes_are_rounded_down() {
        let shown = [0, 1023, 1024, 1024 * 1024 - 1, MIB, 3 << 29, 5 << 40, u64::MAX].map(in_binary_units);
        let expected =
            ["0 B", "1023 B", "1.0 KiB", "1023.9 KiB", "1.0 MiB", "1.5 GiB", "5.0 TiB", "16777215.9 TiB"];
        assert_eq!(shown, expected);
    }
}
