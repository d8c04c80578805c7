//! Reads a new file back, and compares every byte with that of its source, which is made again.

use super::Values;
use super::progress::Step;
use super::staged::StagedFile;
use super::tensors::Pass;
use crate::error::{Code, Error, Result};
use crate::num::to_u64;
use crate::stream::ByteTarget;

/// The bytes that are read back at once.
const READ_BACK_BYTES: usize = 256 << 10;

/// Fails with `VerifyFailed` unless header and tensors of the file are those that were to be written by this pass.
///
/// The data is written to the disk and dropped from the page cache first, so that it comes from the disk if the file system has one.
/// A file that differs, or cannot be read, is not kept for a later run.
pub(super) fn verify(file: &mut StagedFile, written: &Pass<'_>) -> Result<()> {
    file.sync_and_drop_cache()?;
    let target = ReadBack(file);
    let pass = Pass { step: Step::Verified, resumed: None, ..*written };
    let verified = target.write_at(0, &written.plan.head).and_then(|()| pass.run(&target, Values::position));
    if verified.as_ref().is_err_and(|error| error.path() == Some(file.target())) {
        file.distrust();
    }
    verified
}

/// A target that has its bytes already, and fails unless they are the same.
struct ReadBack<'f>(&'f StagedFile);

impl ByteTarget for ReadBack<'_> {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut buffer = vec![0; bytes.len().min(READ_BACK_BYTES)];
        let mut offset = offset;
        for expected in bytes.chunks(READ_BACK_BYTES) {
            let found = &mut buffer[..expected.len()];
            self.0.read_at(offset, found)?;
            if found != expected
                && let Some(at) = found.iter().zip(expected).position(|(found, expected)| found != expected)
            {
                let (found, expected) = (found[at], expected[at]);
                let text =
                    format!("the new file was read back as {found:#04x}, its source has {expected:#04x}");
                let error = Error::new(Code::VerifyFailed, text).at(offset + to_u64(at));
                return Err(error.in_file(self.0.target()));
            }
            offset += to_u64(expected.len());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use super::*;
    use crate::dtype::DType;
    use crate::layout::Layout;
    use crate::tensor::Request;
    use crate::write::{DeferredArray, HostArray, Progress, WriteOptions, plan};

    /// A large tensor that is cast, small ones, and one that is made when its turn comes.
    fn tensors() -> Vec<(String, Values)> {
        let bytes: Arc<Vec<u8>> =
            Arc::new((0..4_000_000_u32).flat_map(|n| (n as f32).to_le_bytes()).collect());
        let array = |len: u64, dtype: DType| {
            let layout = Layout::contiguous(&[len]).unwrap();
            Values::Array(
                HostArray::new(bytes.clone(), DType::F32, layout).unwrap(),
                Request::new().dtype(dtype),
            )
        };
        let deferred = DeferredArray {
            dtype: DType::U8,
            shape: [1000][..].into(),
            tie: None,
            make: Arc::new(|| Ok(Arc::new(vec![7; 1000]))),
        };
        vec![
            ("large".to_owned(), array(4_000_000, DType::BF16)),
            ("small".to_owned(), array(10, DType::F32)),
            ("empty".to_owned(), array(0, DType::F32)),
            ("made".to_owned(), Values::Deferred(deferred, Request::new())),
        ]
    }

    #[test]
    fn a_byte_that_changes_between_writing_and_verifying_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a");
        fs::write(&target, "old").unwrap();
        let (tensors, options) = (tensors(), WriteOptions::new().overwrite(true).threads(2));
        let plan = plan(&tensors, &options).unwrap();
        let pass =
            Pass { tensors: &tensors, plan: &plan, options: &options, step: Step::Written, resumed: None };
        let faults = [(None, 3_u64), (Some(0), 0), (Some(0), 7_999_999), (Some(1), 39), (Some(3), 500)];
        for (tensor, at) in faults {
            let mut file = StagedFile::create(&target, plan.len, true).unwrap();
            file.write_at(0, &plan.head).unwrap();
            pass.run(&file, Values::position).unwrap();
            verify(&mut file, &pass).unwrap();
            let offset = tensor.map_or(0, |tensor: usize| plan.regions[tensor].start()) + at;
            let mut byte = [0];
            file.read_at(offset, &mut byte).unwrap();
            file.write_at(offset, &[byte[0] ^ 4]).unwrap();
            let error = verify(&mut file, &pass).unwrap_err();
            assert_eq!((error.code(), error.offset()), (Code::VerifyFailed, Some(offset)));
            assert_eq!(error.member(), tensor.map(|tensor| tensors[tensor].0.as_str()));
            assert_eq!(error.path(), Some(&*target));
        }
        assert_eq!(fs::read(&target).unwrap(), b"old");
    }

    #[test]
    fn progress_is_told_of_every_byte_of_both_passes() {
        let folder = tempfile::tempdir().unwrap();
        let (tensors, counts) =
            (tensors(), Arc::new(std::sync::Mutex::new(std::collections::BTreeMap::new())));
        let counted = counts.clone();
        let progress = Progress::new(move |name, nbytes, step| {
            *counted.lock().unwrap().entry((name.to_owned(), format!("{step:?}"))).or_insert(0) += nbytes;
        });
        let options = WriteOptions::new().sync(false).verify(true).progress(progress);
        crate::write::write_file(folder.path().join("a"), tensors, &options).unwrap();
        let expected = [("large", 8_000_000), ("made", 1000), ("small", 40)];
        let expected = expected.iter().flat_map(|&(name, nbytes)| {
            ["Verified", "Written"].map(|step| ((name.to_owned(), step.to_owned()), nbytes))
        });
        assert_eq!(*counts.lock().unwrap(), expected.collect());
    }

    #[test]
    fn what_has_no_file_or_no_source_cannot_be_verified() {
        let folder = tempfile::tempdir().unwrap();
        let options = WriteOptions::new().verify(true);
        let error = crate::write::write_in_order(&mut Vec::new(), tensors(), &options).unwrap_err();
        assert_eq!(error.code(), Code::Value);
        let error = crate::write::Writer::create(folder.path().join("a"), Vec::new(), &options).unwrap_err();
        assert_eq!(error.code(), Code::Value);
    }
}
