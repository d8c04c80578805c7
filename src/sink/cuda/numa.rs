//! The CPUs of the NUMA node that a GPU is attached to.
//!
//! Where a machine has several nodes, the threads that fill the pinned ring run on the GPU's node, and the ring lies in its memory:
//! otherwise every byte crosses the link between the nodes, which is slower than the link to the GPU.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::thread;

use crate::error::{Code, Error, Result, error};
use crate::sink::os::{self, SYSFS};

/// The CPUs that uploads to a GPU run on. None for any: the machine has one node, or does not tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cpus(Vec<usize>);

impl Cpus {
    /// For the GPU at this PCI address: those in `RUSTLOAD_UPLOAD_CPUS`, such as `0-15,32-47` or `all`, or those of its node. Only
    /// CPUs that this process may use; any if none of them is.
    pub(super) fn of_gpu(pci_address: Option<&str>) -> Result<Cpus> {
        let text = std::env::var("RUSTLOAD_UPLOAD_CPUS").unwrap_or_default();
        let near = match text.trim() {
            "all" => Vec::new(),
            "" => pci_address.and_then(|address| of_node(Path::new(SYSFS), address)).unwrap_or_default(),
            list => parse_list(list).ok_or_else(|| {
                error!(Code::Value, "RUSTLOAD_UPLOAD_CPUS={text}: expected CPU numbers, or all")
                    .note("for example RUSTLOAD_UPLOAD_CPUS=0-15,32-47")
            })?,
        };
        Ok(Cpus::allowed(near, &os::allowed_cpus()))
    }

    fn allowed(mut near: Vec<usize>, allowed: &[usize]) -> Cpus {
        near.retain(|cpu| allowed.contains(cpu));
        Cpus(near)
    }

    /// How many there are, of the `cores` that this process may use.
    pub(super) fn count(&self, cores: usize) -> usize {
        if self.0.is_empty() { cores } else { self.0.len().min(cores) }
    }

    /// Runs `work` on them: the memory that it touches first is their node's.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        if self.0.is_empty() {
            return work();
        }
        thread::scope(|scope| {
            let started =
                thread::Builder::new().name("rustload-upload".to_owned()).spawn_scoped(scope, || {
                    self.enter();
                    work()
                });
            let thread = started.map_err(|error| Error::io(error, None))?;
            thread.join().unwrap_or_else(|_| Err(Error::new(Code::InternalError, "a thread panicked")))
        })
    }

    /// Keeps the calling thread on them.
    pub(super) fn enter(&self) {
        if !self.0.is_empty() {
            os::stay_on(&self.0);
        }
    }
}

/// The CPUs of the node of the device at this PCI address, as Linux describes it in `sysfs`; `None` if the machine has one node, or
/// the device's is not known.
fn of_node(sysfs: &Path, pci_address: &str) -> Option<Vec<usize>> {
    let read = |path: &str| fs::read_to_string(sysfs.join(path)).ok();
    let list = |path: &str| parse_list(read(path)?.trim());
    if list("devices/system/node/online")?.len() < 2 {
        return None;
    }
    let address = pci_address.to_ascii_lowercase();
    // -1 if it is not known.
    let node: usize = read(&format!("bus/pci/devices/{address}/numa_node"))?.trim().parse().ok()?;
    list(&format!("devices/system/node/node{node}/cpulist"))
}

/// The numbers of a list such as `0-3,8`, as Linux writes it.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    /// More than any machine has.
    const MAX: usize = 1 << 16;
    let mut numbers = Vec::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= MAX {
            return None;
        }
        numbers.extend(first..=last);
    }
    numbers.sort_unstable();
    numbers.dedup();
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with two nodes, and a GPU on each; a third GPU's node is not known.
    fn machine(online: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        };
        write("devices/system/node/online", online);
        write("devices/system/node/node0/cpulist", "0-3,8-11");
        write("devices/system/node/node1/cpulist", "4-7,12-15");
        write("bus/pci/devices/0000:3b:00.0/numa_node", "0");
        write("bus/pci/devices/0000:af:00.0/numa_node", "1");
        write("bus/pci/devices/0000:c1:00.0/numa_node", "-1");
        folder
    }

    #[test]
    fn the_cpus_near_a_gpu_are_those_of_its_node() {
        let two = machine("0-1");
        assert_eq!(of_node(two.path(), "0000:3B:00.0"), Some(vec![0, 1, 2, 3, 8, 9, 10, 11]));
        assert_eq!(of_node(two.path(), "0000:AF:00.0"), Some(vec![4, 5, 6, 7, 12, 13, 14, 15]));
        assert_eq!(of_node(two.path(), "0000:C1:00.0"), None, "its node is not known");
        assert_eq!(of_node(two.path(), "0000:00:00.0"), None, "there is no such device");
        assert_eq!(of_node(machine("0").path(), "0000:3B:00.0"), None, "one node");
        assert_eq!(of_node(Path::new("/nonexistent"), "0000:3B:00.0"), None);
    }

    #[test]
    fn only_cpus_that_the_process_may_use_count() {
        assert_eq!(Cpus::allowed(vec![0, 1, 8], &[1, 2, 8]), Cpus(vec![1, 8]));
        assert_eq!(Cpus::allowed(vec![0, 1], &[4]), Cpus(vec![]));
        assert_eq!(Cpus::allowed(vec![], &[4]), Cpus(vec![]));
        assert_eq!(Cpus(vec![1, 8]).count(64), 2);
        assert_eq!(Cpus((0..32).collect()).count(4), 4, "a quota of CPU time");
        assert_eq!(Cpus(vec![]).count(64), 64);
    }

    #[test]
    fn lists_of_cpus_are_those_that_linux_writes() {
        assert_eq!(parse_list("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list(" 5 , 5"), Some(vec![5]));
        for wrong in ["", "a", "3-1", "-1", "0-", "0-99999999999999999999", "0-70000", "0,,1"] {
            assert_eq!(parse_list(wrong), None, "{wrong}");
        }
    }
}
