#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| device::drive::fuzz::drive_open(bytes));
