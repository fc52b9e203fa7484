#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fabric::host::fuzz_session(bytes));
