//! The elements of an array, for the host to read: slices of owned memory, copies of any array in host memory.
//!
//! **Protocol.** A slice is made only of host memory that no code writes to while the slice lives. Safe Rust cannot write to the
//! memory of an [`Array`]; other code has to have its address, and only [`Array::address`] and the exports of `sink::dlpack` and
//! `python/buffer.rs` give that away. Exported memory is marked, and no slice of it is made from then on. The rest is the duty of
//! the code that writes: see [`Array::address`].
//!
//! A view lies in a mapping whose file another process may change, so a reference to its bytes would be unsound. [`Array::to_bytes`]
//! and [`Array::to_vec`] copy from its address and make no reference.

use std::ptr;

use half::{bf16, f16};

use super::{Array, Owner};
use crate::dtype::DType;
use crate::error::{Code, Result, bail, error};
use crate::num::to_usize;

/// A Rust type of the elements of one [`DType`]. Rust's numbers and those of the crate `half` are elements, and pairs of floats are
/// complex ones. A program can implement it for other dtypes, such as those of one byte.
pub trait Element: bytemuck::Pod {
    /// The dtype. Its elements have the size of this type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($element:ty: $dtype:ident),* $(,)?) => {
        $(impl Element for $element {
            const DTYPE: DType = DType::$dtype;
        })*
    };
}

elements! {
    u8: U8, i8: I8, u16: U16, i16: I16, u32: U32, i32: I32, u64: U64, i64: I64,
    f16: F16, bf16: BF16, f32: F32, f64: F64, [f16; 2]: C32, [f32; 2]: C64, [f64; 2]: C128,
}

impl Array {
    /// The bytes of all elements, in C order. `None` for a view, an array in GPU memory, and memory that was exported to a library
    /// that may write to it; [`Array::to_bytes`] copies those in host memory.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        let Owner::Memory(memory) = &self.owner else { return None };
        let start = usize::try_from(self.start).ok()?;
        let end = start.checked_add(usize::try_from(self.nbytes()).ok()?)?;
        memory.bytes()?.get(start..end).filter(|_| self.is_contiguous())
    }

    /// The elements, in C order. `None` where their dtype is not `T`'s, and where [`Array::as_bytes`] gives none.
    ///
    /// ```
    /// # use rustload::{Checkpoint, DType, Options, Request};
    /// # let header = br#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    /// # let numbers = [1.5_f32, -2.0].map(f32::to_le_bytes).concat();
    /// # let file = [&(header.len() as u64).to_le_bytes()[..], header, &numbers].concat();
    /// let checkpoint = Checkpoint::from_bytes(std::sync::Arc::new(file), Options::new())?;
    /// let array = checkpoint.tensor("w")?.materialize(&Request::new().dtype(DType::F64))?;
    /// assert_eq!(array.as_slice::<f64>(), Some(&[1.5, -2.0][..]));
    /// assert_eq!(array.as_slice::<f32>(), None);
    /// # Ok::<(), rustload::Error>(())
    /// ```
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        let bytes = self.as_bytes().filter(|_| self.has_elements_of::<T>())?;
        bytemuck::try_cast_slice(bytes).ok()
    }

    /// A copy of the bytes of all elements, in C order. Fails for an array in GPU memory, and where memory runs out.
    ///
    /// If the file of a view was truncated, reading the bytes that it lost ends the process (SIGBUS), as any access to the view does.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.copy_as()
    }

    /// A copy of the elements, in C order. Fails where their dtype is not `T`'s, and where [`Array::to_bytes`] does.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if !self.has_elements_of::<T>() {
            bail!(Code::Type, "the array has elements of {}, not of {}", self.dtype, T::DTYPE);
        }
        self.copy_as()
    }

    fn has_elements_of<T: Element>(&self) -> bool {
        self.dtype == T::DTYPE && size_of::<T>() as u64 == self.dtype.itemsize()
    }

    fn copy_as<T: bytemuck::Pod>(&self) -> Result<Vec<T>> {
        let nbytes = self.nbytes();
        let out_of_memory = || error!(Code::Memory, "{nbytes} byte(s) could not be allocated");
        let count = usize::try_from(nbytes).map_err(|_| out_of_memory())? / size_of::<T>();
        let mut out: Vec<T> = bytemuck::try_zeroed_vec(count).map_err(|()| out_of_memory())?;
        self.copy_elements(bytemuck::cast_slice_mut(&mut out))?;
        Ok(out)
    }

    /// The bytes of all elements, of a view too, without a copy. `None` for a strided array and one in GPU memory.
    ///
    /// # Safety
    /// While the slice lives, no code writes to the memory of this array, and if it is a view, no process changes its file.
    pub unsafe fn as_bytes_unchecked(&self) -> Option<&[u8]> {
        if self.is_on_gpu() || !self.is_contiguous() {
            return None;
        }
        let len = usize::try_from(self.nbytes()).ok()?;
        // SAFETY: the array keeps its owner alive, in which `len` bytes from `address` lie: both were checked when it was made. They
        // are initialised, and the caller promises that they do not change.
        Some(unsafe { std::slice::from_raw_parts(self.address().as_ptr(), len) })
    }

    /// Copies the elements to `out`, in C order. Fails for an array in GPU memory, and where `out` does not have exactly its bytes.
    fn copy_elements(&self, out: &mut [u8]) -> Result<()> {
        if self.is_on_gpu() {
            bail!(Code::Buffer, "the array is in GPU memory, which the host cannot read");
        }
        if out.len() as u64 != self.nbytes() {
            bail!(Code::InternalError, "a copy of an array has another size");
        }
        let (outer, run) = self.contiguous_runs();
        let itemsize = self.dtype.itemsize();
        let first = self.address().as_ptr();
        let mut position = vec![0_u64; outer];
        for part in out.chunks_exact_mut(to_usize(run.saturating_mul(itemsize)).max(1)) {
            let element: u64 = position.iter().zip(&self.strides).map(|(at, stride)| at * stride).sum();
            let from = first.wrapping_add(to_usize(element * itemsize));
            // SAFETY: the run lies in the owner's memory, as all elements do, which was checked when the array was made. The copy
            // makes no reference to it, and `part` is borrowed mutably, so the two do not overlap.
            unsafe { ptr::copy_nonoverlapping(from, part.as_mut_ptr(), part.len()) };
            for (at, &size) in position.iter_mut().zip(&self.shape).rev() {
                *at += 1;
                if *at < size {
                    break;
                }
                *at = 0;
            }
        }
        Ok(())
    }

    /// The number of leading dimensions that are not part of a run, and the elements of a run: the trailing dimensions that are
    /// contiguous.
    fn contiguous_runs(&self) -> (usize, u64) {
        let (mut outer, mut run) = (self.shape.len(), 1_u64);
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if size != 1 && stride != run {
                break;
            }
            run = run.saturating_mul(size);
            outer -= 1;
        }
        (outer, run)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use super::*;
    use crate::bytes::Source;
    use crate::layout::{Dims, Layout, TensorIndex};
    use crate::sink::{HostBuffer, dlpack};

    fn owned(numbers: &[f32], shape: &[u64]) -> Array {
        let bytes: &[u8] = bytemuck::cast_slice(numbers);
        let mut memory = HostBuffer::unfilled(bytes.len() as u64).unwrap();
        memory.bytes_mut().copy_from_slice(bytes);
        Array::owned(memory.filled(), DType::F32, Dims::from_slice(shape)).unwrap()
    }

    /// A view of `numbers` in a file, and the file.
    fn view(numbers: &[f32], layout: Layout) -> (Array, tempfile::NamedTempFile) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytemuck::cast_slice(numbers)).unwrap();
        let (mapping, _) =
            Source::open(file.path()).unwrap().map(crate::sys::HAS_COPY_ON_WRITE).unwrap().unwrap();
        let start = layout.offset * 4;
        (Array::view(mapping, start, DType::F32, layout).unwrap(), file)
    }

    #[test]
    fn owned_memory_is_read_as_a_slice_of_its_dtype() {
        let array = owned(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
        assert_eq!(array.as_slice::<f32>(), Some(&[1.0, 2.0, 3.0, 4.0][..]));
        assert_eq!(array.as_slice::<i32>(), None);
        assert_eq!(array.as_bytes().map(<[u8]>::len), Some(16));
        assert_eq!(array.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(array.to_vec::<u8>().unwrap_err().code(), Code::Type);
        let part = array.part(4, DType::F32, [2][..].into()).unwrap();
        assert_eq!(part.as_slice::<f32>(), Some(&[2.0, 3.0][..]));
        let empty = owned(&[], &[0, 3]);
        assert_eq!((empty.as_slice::<f32>(), empty.to_bytes().unwrap()), (Some(&[][..]), vec![]));
    }

    #[test]
    fn elements_have_the_size_of_their_dtype() {
        fn check<T: Element>() {
            assert_eq!(size_of::<T>() as u64, T::DTYPE.itemsize(), "{}", T::DTYPE);
        }
        check::<u8>();
        check::<i64>();
        check::<f16>();
        check::<bf16>();
        check::<f64>();
        check::<[f16; 2]>();
        check::<[f32; 2]>();
        check::<[f64; 2]>();
    }

    /// Of another size than the elements.
    #[derive(Clone, Copy, PartialEq, Debug, bytemuck::Pod, bytemuck::Zeroable)]
    #[repr(C)]
    struct Empty;

    impl Element for Empty {
        const DTYPE: DType = DType::F32;
    }

    #[test]
    fn a_type_of_another_size_is_refused() {
        let array = owned(&[1.0, 2.0], &[2]);
        assert_eq!(array.as_slice::<Empty>(), None);
        assert_eq!(array.to_vec::<Empty>().unwrap_err().code(), Code::Type);
    }

    #[test]
    fn exported_memory_has_no_slice_and_is_copied() {
        for versioned in [true, false] {
            let array = owned(&[1.0, 2.0], &[2]);
            let other = array.clone();
            if versioned {
                let managed = dlpack::export_versioned(&array, false).unwrap();
                // SAFETY: exported just now, and not used afterwards.
                unsafe { dlpack::delete_versioned(managed.as_ptr()) };
            } else {
                let managed = dlpack::export_legacy(&array).unwrap();
                // SAFETY: as above.
                unsafe { dlpack::delete_legacy(managed.as_ptr()) };
            }
            assert!(array.as_bytes().is_none() && other.as_slice::<f32>().is_none());
            assert_eq!(other.to_vec::<f32>().unwrap(), [1.0, 2.0]);
        }
    }

    #[test]
    fn views_are_copied_in_the_order_of_their_strides() {
        let numbers: Vec<f32> = (0_u8..24).map(f32::from).collect();
        let whole = Layout::contiguous(&[2, 3, 4]).unwrap();
        let range =
            |start, stop, step| TensorIndex::Range { start: Some(start), stop: Some(stop), step: Some(step) };
        let layouts = [
            whole.clone(),
            whole.permute(&[2, 0, 1]).unwrap(),
            whole.reversed(),
            whole.index(&[TensorIndex::At(1), range(0, 3, 2)]).unwrap(),
            whole.index(&[TensorIndex::Ellipsis, range(1, 3, 1)]).unwrap(),
            whole.index(&[TensorIndex::At(0), TensorIndex::At(2), TensorIndex::At(3)]).unwrap(),
            whole.index(&[range(1, 1, 1)]).unwrap(),
            Layout { shape: [3, 2][..].into(), strides: [0, 1][..].into(), offset: 5 },
        ];
        for layout in layouts {
            let (array, _file) = view(&numbers, layout.clone());
            assert!(array.as_bytes().is_none());
            let mut expected = Vec::new();
            visit(&layout, 0, layout.offset, &mut |at| expected.push(numbers[to_usize(at)]));
            assert_eq!(array.to_vec::<f32>().unwrap(), expected, "{layout:?}");
            assert_eq!(array.to_bytes().unwrap(), bytemuck::cast_slice::<f32, u8>(&expected));
            // SAFETY: no other code knows the file or the mapping.
            let bytes = unsafe { array.as_bytes_unchecked() };
            assert_eq!(bytes, layout.is_contiguous().then_some(bytemuck::cast_slice(&expected[..])));
        }
    }

    /// Calls `found` with the position of each element, in C order.
    fn visit(layout: &Layout, dim: usize, at: u64, found: &mut impl FnMut(u64)) {
        match layout.shape.get(dim) {
            None => found(at),
            Some(&size) => {
                (0..size).for_each(|n| visit(layout, dim + 1, at + n * layout.strides[dim], found));
            }
        }
    }

    #[derive(Debug)]
    struct NoGpu;

    // SAFETY: no bytes at all.
    unsafe impl super::super::GpuMemory for NoGpu {
        fn device(&self) -> u32 {
            0
        }

        fn address(&self) -> u64 {
            0
        }

        fn nbytes(&self) -> u64 {
            0
        }
    }

    #[test]
    fn gpu_memory_is_not_read_by_the_host() {
        let array = Array::on_gpu(Arc::new(NoGpu));
        assert!(array.as_bytes().is_none());
        assert_eq!(array.to_bytes().unwrap_err().code(), Code::Buffer);
    }
}
