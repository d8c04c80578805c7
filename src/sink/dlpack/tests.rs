//! Exports and imports of one-dimensional arrays, with structures made by hand.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::sink::HostBuffer;

fn bytes(n: u64) -> Array {
    let mut memory = HostBuffer::new(n).unwrap();
    memory.bytes_mut().fill(7);
    Array::owned(memory, DType::U8, [n][..].into()).unwrap()
}

#[test]
fn an_exported_row_of_bytes_can_be_imported_and_written_to() {
    let array = bytes(5);
    // SAFETY: a fresh export, owned by the `Foreign` alone.
    let mut one = unsafe { Foreign::versioned(export_versioned(&array, false).unwrap()) };
    // SAFETY: as above.
    let mut two = unsafe { Foreign::legacy(export_legacy(&array).unwrap()) };
    one.bytes_mut().unwrap()[0] = 9;
    one.bytes_mut().unwrap()[1] = 8;
    // Only one of them at a time.
    assert_eq!(two.bytes_mut().unwrap_err().code(), Code::Value);
    drop(one);
    assert_eq!(two.bytes_mut().unwrap(), [9, 8, 7, 7, 7]);
}

#[test]
fn only_a_sole_owner_exports_with_is_copied() {
    let flags = |array: &Array, hands_over| {
        let exported = export_versioned(array, hands_over).unwrap();
        // SAFETY: just made.
        let flags = unsafe { exported.as_ref() }.flags;
        (flags, exported)
    };
    // SAFETY: made by `flags`, freed once.
    let free = |exported: NonNull<ManagedTensorVersioned>| unsafe { delete_versioned(exported.as_ptr()) };
    let array = bytes(8);
    let (plain, one) = flags(&array, false);
    // The first export is alive.
    let (second, two) = flags(&array, true);
    free(one);
    free(two);
    let (alone, three) = flags(&array, true);
    free(three);
    let part = array.part(0, DType::U8, [8][..].into()).unwrap();
    let (of_part, four) = flags(&part, true);
    free(four);
    let (adopted, five) = flags(&foreign_row(CUDA, &Arc::default()).into_gpu(CUDA, 0).unwrap(), true);
    free(five);
    assert_eq!((plain, second, alone, of_part, adopted), (0, 0, IS_COPIED, 0, 0));
}

#[test]
fn a_row_without_address_or_shape_is_refused_as_destination() {
    let mut row = foreign_row(CPU, &Arc::default());
    let Structure::Versioned(managed) = row.structure else { unreachable!() };
    // SAFETY: the structure is alive, and no other code uses it.
    unsafe { (*managed.as_ptr()).tensor.data = ptr::null_mut() };
    assert_eq!(row.bytes_mut().unwrap_err().message(), "cannot be written to: it has no address");
    // SAFETY: as above.
    unsafe { (*managed.as_ptr()).tensor.shape = ptr::null_mut() };
    assert_eq!(row.bytes_mut().unwrap_err().message(), "cannot be written to: it has no shape");
}

#[test]
fn only_rows_of_bytes_are_writable_destinations() {
    let array = Array::owned(HostBuffer::new(8).unwrap(), DType::F32, [2][..].into()).unwrap();
    // SAFETY: a fresh export, owned by the `Foreign` alone.
    let mut foreign = unsafe { Foreign::versioned(export_versioned(&array, false).unwrap()) };
    assert_eq!(foreign.bytes_mut().unwrap_err().code(), Code::Value);
}

#[test]
fn an_empty_tensor_is_exported_with_a_null_address() {
    let exported = export_versioned(&bytes(0), false).unwrap();
    // SAFETY: just made.
    assert!(unsafe { exported.as_ref() }.tensor.data.is_null());
    // SAFETY: made above, freed once.
    unsafe { delete_versioned(exported.as_ptr()) };
}

/// 12 bytes as another library would export them from the memory of GPU 3; `deleted` counts calls of its deleter.
fn foreign_row(kind: i32, deleted: &Arc<AtomicUsize>) -> Foreign {
    unsafe extern "C" fn delete(managed: *mut ManagedTensorVersioned) {
        // SAFETY: the box leaked below.
        let managed = unsafe { Box::from_raw(managed) };
        // SAFETY: the counter and the numbers put there below.
        let context = unsafe { Box::from_raw(managed.context.cast::<(Arc<AtomicUsize>, [i64; 2])>()) };
        context.0.fetch_add(1, Ordering::SeqCst);
    }
    let mut context = Box::new((deleted.clone(), [12_i64, 1]));
    let numbers = context.1.as_mut_ptr();
    let tensor = Tensor {
        data: ptr::without_provenance_mut(1 << 40),
        device: Device { kind, id: 3 },
        ndim: 1,
        dtype: data_type(DType::U8),
        shape: numbers,
        strides: numbers.wrapping_add(1),
        byte_offset: 8,
    };
    let context = Box::into_raw(context).cast();
    let managed =
        ManagedTensorVersioned { major: 1, minor: 3, context, deleter: Some(delete), flags: 0, tensor };
    // SAFETY: just made, owned by the `Foreign` alone.
    unsafe { Foreign::versioned(NonNull::from(Box::leak(Box::new(managed)))) }
}

#[test]
fn an_adopted_row_lives_as_long_as_its_parts_and_is_deleted_once() {
    let deleted = Arc::new(AtomicUsize::new(0));
    let row = foreign_row(CUDA, &deleted).into_gpu(CUDA, 0).unwrap();
    assert_eq!((row.is_on_gpu(), row.nbytes(), row.address().addr().get()), (true, 12, (1 << 40) + 8));
    let part = row.part(4, DType::F16, [2, 2][..].into()).unwrap();
    drop(row);
    assert_eq!(part.address().addr().get(), (1 << 40) + 12);
    assert_eq!(part.device(), Device { kind: CUDA, id: 3 });
    let exported = export_versioned(&part, true).unwrap();
    drop(part);
    assert_eq!(deleted.load(Ordering::SeqCst), 0);
    // SAFETY: made above, freed once.
    unsafe { delete_versioned(exported.as_ptr()) };
    assert_eq!(deleted.load(Ordering::SeqCst), 1);
}

#[test]
fn only_memory_of_a_gpu_is_adopted_and_only_host_memory_written_to() {
    let deleted = Arc::new(AtomicUsize::new(0));
    assert_eq!(foreign_row(CPU, &deleted).into_gpu(CUDA, 0).unwrap_err().code(), Code::Buffer);
    assert_eq!(foreign_row(CUDA, &deleted).bytes_mut().unwrap_err().code(), Code::Value);
    assert_eq!(deleted.load(Ordering::SeqCst), 2);
}

#[test]
fn an_owned_array_needs_exactly_its_elements_bytes() {
    for (nbytes, shape) in [(8, [3]), (8, [1]), (0, [1]), (8, [u64::MAX / 2])] {
        let memory = HostBuffer::new(nbytes).unwrap();
        let found = Array::owned(memory, DType::F32, shape[..].into());
        assert_eq!(found.unwrap_err().code(), Code::InternalError, "{nbytes} {shape:?}");
    }
}

#[test]
fn a_part_must_lie_inside_and_be_aligned() {
    let row = foreign_row(CUDA, &Arc::default()).into_gpu(CUDA, 0).unwrap();
    for (start, dtype, shape) in [
        (9, DType::F32, [1]),
        (2, DType::F32, [2]),
        (13, DType::U8, [0]),
        (0, DType::U8, [13]),
        (u64::MAX, DType::U8, [1]),
        (0, DType::F64, [u64::MAX / 2]),
    ] {
        assert_eq!(row.part(start, dtype, shape[..].into()).unwrap_err().code(), Code::Value);
    }
    assert_eq!(row.part(12, DType::U8, [0][..].into()).unwrap().nbytes(), 0);
    let host = bytes(5);
    let part = host.part(1, DType::U8, [4][..].into()).unwrap();
    assert_eq!(part.address().addr().get(), host.address().addr().get() + 1);
}

#[test]
fn gpu_memory_contains_checks_both_ends_and_the_device() {
    // 12 bytes from `start`, on GPU 3.
    let (row, start) = (foreign_row(CUDA, &Arc::default()).into_gpu(CUDA, 0).unwrap(), (1 << 40) + 8);
    let part = row.part(4, DType::U8, [2][..].into()).unwrap();
    for array in [&row, &part] {
        assert!(array.gpu_memory_contains(3, start, 12));
        assert!(array.gpu_memory_contains(3, start + 11, 1));
        assert!(array.gpu_memory_contains(3, start + 12, 0));
        assert!(!array.gpu_memory_contains(2, start, 12));
        for (address, len) in
            [(start, 13), (start - 1, 1), (start + 12, 1), (0, 0), (start, u64::MAX), (u64::MAX, 2)]
        {
            assert!(!array.gpu_memory_contains(3, address, len), "{address:#x} {len}");
        }
    }
    assert!(!bytes(5).gpu_memory_contains(0, 0, 0));
}
