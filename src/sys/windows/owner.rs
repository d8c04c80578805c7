//! Who owns a file.
//!
//! **Protocol.** An identifier of an owner is read while the memory that it lies in lives: the descriptor, which is freed once, or the
//! buffer of the token. Handles are closed once.
#![expect(unsafe_code, reason = "the standard library knows no owners")]

use std::fs::File;
use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr;

use windows_sys::Win32::Foundation::{HANDLE, LocalFree};
use windows_sys::Win32::Security::Authorization::{GetSecurityInfo, SE_FILE_OBJECT};
use windows_sys::Win32::Security::{
    EqualSid, GetTokenInformation, OWNER_SECURITY_INFORMATION, PSECURITY_DESCRIPTOR, PSID,
    SECURITY_MAX_SID_SIZE, TOKEN_INFORMATION_CLASS, TOKEN_QUERY, TOKEN_USER, TokenOwner, TokenUser,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};

/// Memory for what a token says of its user, or of the owner of new files: the structure, and the identifier that it points to. Aligned
/// like a pointer.
type TokenBuffer =
    [usize; (size_of::<TOKEN_USER>() + SECURITY_MAX_SID_SIZE as usize).div_ceil(size_of::<usize>())];

/// Whether an open file or folder belongs to the user of this process, or to whom new files of this process belong to: those of an
/// administrator may belong to all administrators.
pub(super) fn is_own(file: &File) -> io::Result<bool> {
    let (mut user, mut group): (TokenBuffer, TokenBuffer) = ([0; _], [0; _]);
    let own = [of_token(&mut user, TokenUser)?, of_token(&mut group, TokenOwner)?];
    let (mut owner, mut descriptor): (PSID, PSECURITY_DESCRIPTOR) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the handle is open, and both results are written to variables of their types.
    let status = unsafe {
        GetSecurityInfo(
            file.as_raw_handle(),
            SE_FILE_OBJECT,
            OWNER_SECURITY_INFORMATION,
            &mut owner,
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
            &mut descriptor,
        )
    };
    if status != 0 {
        return Err(io::Error::from_raw_os_error(status.cast_signed()));
    }
    // SAFETY: all identifiers are valid: those in `own` lie in the buffers, and the owner in the descriptor.
    let is_own = !owner.is_null() && own.into_iter().any(|own| unsafe { EqualSid(owner, own) } != 0);
    // SAFETY: the descriptor was allocated by GetSecurityInfo, and nothing uses it, or the owner in it, afterwards.
    unsafe { LocalFree(descriptor) };
    Ok(is_own)
}

/// The identifier that the token of this process has for its user or its owner. It lies in the buffer.
fn of_token(buffer: &mut TokenBuffer, class: TOKEN_INFORMATION_CLASS) -> io::Result<PSID> {
    debug_assert!([TokenUser, TokenOwner].contains(&class));
    let mut token: HANDLE = ptr::null_mut();
    // SAFETY: the pseudo handle of this process needs no closing.
    let process = unsafe { GetCurrentProcess() };
    // SAFETY: the result is written to a variable of its type.
    if unsafe { OpenProcessToken(process, TOKEN_QUERY, &mut token) } == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle was opened just now, and belongs to nothing else.
    let token = unsafe { OwnedHandle::from_raw_handle(token) };
    let (mut len, max) = (0, size_of::<TokenBuffer>() as u32);
    let start = buffer.as_mut_ptr();
    // SAFETY: the buffer has `max` bytes, and is aligned as the structure is.
    if unsafe { GetTokenInformation(token.as_raw_handle(), class, start.cast(), max, &mut len) } == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has written one of both structures at the start of the buffer, and both start with the identifier.
    Ok(unsafe { start.cast::<PSID>().read() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_is_this_users() {
        assert!(is_own(&tempfile::tempfile().unwrap()).unwrap());
    }
}
