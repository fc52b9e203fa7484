#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fabric::fuzz::target_authentication(bytes));
