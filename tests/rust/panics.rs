//! Y01: a panic below the Python binding becomes an `InternalError`, which asks for a bug report.

use rustload::internals::error::guarded;
use rustload::internals::parallel::for_each;
use rustload::{Code, Error, Kind, Result};

fn quietly<T>(job: impl FnOnce() -> T) -> T {
    // Without the default hook, which would print the panics.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = job();
    std::panic::set_hook(hook);
    result
}

#[test]
fn a_panic_below_the_binding_is_an_internal_error() {
    quietly(|| {
        let error = guarded::<()>(|| panic!("index {} is past the end", 3)).unwrap_err();
        assert_eq!((error.code(), error.kind()), (Code::InternalError, Kind::Internal));
        assert_eq!(error.message(), "internal error: index 3 is past the end");
        assert!(error.next_step().is_some_and(|step| step.contains("report")));
        let error = guarded::<()>(|| std::panic::panic_any(5)).unwrap_err();
        assert_eq!(error.message(), "internal error: a panic");
        // Overflow checks are on in every profile.
        let most = std::hint::black_box(u8::MAX);
        let error = guarded(|| Ok(most + std::hint::black_box(1))).unwrap_err();
        assert!(error.message().contains("overflow"), "{error}");
        // A panic on a worker thread is caught too.
        let work = || -> Result<()> {
            for_each(2, 0..100, || (), |(), item| if item == 50 { panic!("item") } else { Ok(()) })
        };
        assert_eq!(guarded(work).unwrap_err().code(), Code::InternalError);
    });
    assert_eq!(guarded(|| Ok(7)).unwrap(), 7);
    let refused = guarded::<()>(|| Err(Error::new(Code::Value, "no"))).unwrap_err();
    assert_eq!(refused.code(), Code::Value);
}
