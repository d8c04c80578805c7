//! DLPack capsules: the Python side of `sink/dlpack.rs`.
//!
//! **Protocol.** A capsule is made with an unused name. A consumer renames it and owns the structure from then on. The capsule's
//! destructor frees the structure only if the capsule still has the unused name.
//!
//! **Threads.** Free-threaded Python runs threads at once, and reading a capsule's name and changing it are two calls. So an import
//! locks the capsule (a critical section): of several threads that import one capsule, one gets the structure. Other libraries do
//! not lock, so DLPack's rule remains that a capsule is given to one consumer. A destructor is called once, when no thread has a
//! reference any more.

use std::ffi::CStr;
use std::ptr::NonNull;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::PyCapsule;

use crate::sink::Array;
use crate::sink::dlpack::{self, Foreign};

const VERSIONED: &CStr = c"dltensor_versioned";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";
const LEGACY: &CStr = c"dltensor";
const USED_LEGACY: &CStr = c"used_dltensor";

/// Exports an array as a capsule, `versioned` or in the form from before DLPack 1.0. `hands_over` says that the caller drops the
/// array at once, so that the consumer becomes its sole owner.
pub(super) fn export<'py>(
    py: Python<'py>,
    array: &Array,
    versioned: bool,
    hands_over: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let (pointer, name, destructor): (_, _, unsafe extern "C" fn(*mut ffi::PyObject)) = if versioned {
        (dlpack::export_versioned(array, hands_over)?.as_ptr().cast(), VERSIONED, drop_versioned)
    } else {
        (dlpack::export_legacy(array)?.as_ptr().cast(), LEGACY, drop_legacy)
    };
    // SAFETY: the pointer is not null, the name is static, and the destructor matches the structure.
    let capsule = unsafe { ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destructor)) };
    // SAFETY: PyCapsule_New returns a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    if let Some(pointer) = unused(capsule, VERSIONED) {
        // SAFETY: the name is still the unused one, so the structure is the one that `export` made, and has no other owner.
        unsafe { dlpack::delete_versioned(pointer.cast().as_ptr()) };
    }
}

unsafe extern "C" fn drop_legacy(capsule: *mut ffi::PyObject) {
    if let Some(pointer) = unused(capsule, LEGACY) {
        // SAFETY: as in `drop_versioned`.
        unsafe { dlpack::delete_legacy(pointer.cast().as_ptr()) };
    }
}

/// The capsule's pointer, or `None` if it does not have this unused name.
fn unused(capsule: *mut ffi::PyObject, name: &CStr) -> Option<NonNull<std::ffi::c_void>> {
    // SAFETY: all callers pass a live capsule, or one that is being freed; the name is static.
    if unsafe { ffi::PyCapsule_IsValid(capsule, name.as_ptr()) } == 0 {
        return None;
    }
    // SAFETY: valid under this name, as just checked.
    NonNull::new(unsafe { ffi::PyCapsule_GetPointer(capsule, name.as_ptr()) })
}

/// Takes ownership of the structure of another library's capsule, and marks it as used. Fails for a used capsule.
pub(super) fn import(capsule: &Bound<'_, PyAny>) -> PyResult<Foreign> {
    let locked = capsule.cast::<PyCapsule>().map_err(|_| PyTypeError::new_err("not a DLPack capsule"))?;
    with_critical_section(locked, || take(locked))
}

/// As [`import`], while no other import takes the structure.
fn take(capsule: &Bound<'_, PyCapsule>) -> PyResult<Foreign> {
    for (name, used) in [(VERSIONED, USED_VERSIONED), (LEGACY, USED_LEGACY)] {
        if let Some(pointer) = unused(capsule.as_ptr(), name) {
            // SAFETY: a live capsule, and a static name. The new name tells the capsule's destructor not to free the structure.
            if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } != 0 {
                return Err(PyErr::fetch(capsule.py()));
            }
            return Ok(if name == VERSIONED {
                // SAFETY: by DLPack's contract a capsule of this name holds a valid structure, which is owned here from now on.
                unsafe { Foreign::versioned(pointer.cast()) }
            } else {
                // SAFETY: as above.
                unsafe { Foreign::legacy(pointer.cast()) }
            });
        }
    }
    Err(PyTypeError::new_err("the capsule is not a DLPack tensor, or was used before"))
}
