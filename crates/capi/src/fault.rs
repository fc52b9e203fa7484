//! Statuses, and the sentence of a thread's last error.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use client::{Error, ErrorKind};

/// `yagura_status`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    Ok = 0,
    Absent = 1,
    Usage = 2,
    Unavailable = 3,
    Refused = 4,
    OutOfSpace = 5,
    TimedOut = 6,
    Closed = 7,
    Unknown = 8,
    Changed = 9,
    NotANumber = 10,
    Defect = 70,
}

/// Why a function fails.
#[derive(Debug)]
pub struct Fault {
    pub status: Status,
    pub sentence: String,
}

impl Fault {
    pub fn usage(sentence: impl Into<String>) -> Fault {
        Fault { status: Status::Usage, sentence: sentence.into() }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        let status = match error.kind() {
            // Whatever went wrong: what the caller must know first is that it may have happened.
            _ if error.outcome_unknown() => Status::Unknown,
            ErrorKind::Usage => Status::Usage,
            ErrorKind::Unavailable => Status::Unavailable,
            ErrorKind::Refused => Status::Refused,
            ErrorKind::OutOfSpace => Status::OutOfSpace,
            ErrorKind::TimedOut => Status::TimedOut,
            ErrorKind::Closed => Status::Closed,
            // A kind that this table does not know yet.
            _ => Status::Defect,
        };
        Fault { status, sentence: error.to_string() }
    }
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Keeps the sentence for `yagura_error_message`.
pub fn remember(fault: Fault) -> Status {
    // A sentence that quotes a zero byte ends there.
    let mut bytes = fault.sentence.into_bytes();
    bytes.retain(|&byte| byte != 0);
    let message = CString::new(bytes).unwrap_or_default();
    // A thread that is ending has nobody left to ask.
    let _ = MESSAGE.try_with(|kept| kept.replace(message));
    fault.status
}

/// Runs a function's body: its error is kept, and a panic, which must not reach C, is one.
pub fn guard(body: impl FnOnce() -> Result<Status, Fault>) -> Status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status,
        Ok(Err(fault)) => remember(fault),
        Err(_) => {
            let sentence = "a defect of the library: standard error has the panic".to_owned();
            remember(Fault { status: Status::Defect, sentence })
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn yagura_error_message() -> *const c_char {
    MESSAGE.try_with(|kept| kept.borrow().as_ptr()).unwrap_or_else(|_| c"".as_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn yagura_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    CStr::from_bytes_with_nul(VERSION.as_bytes()).unwrap_or(c"").as_ptr()
}
