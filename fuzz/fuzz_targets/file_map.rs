#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| file::fuzz::file_map(bytes));
