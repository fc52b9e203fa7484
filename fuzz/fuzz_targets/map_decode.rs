#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| pool::fuzz::map_decode(bytes));
