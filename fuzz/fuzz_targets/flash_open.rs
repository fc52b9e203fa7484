#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| flash::fuzz::flash_open(bytes));
