#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kv::fuzz::page_decode(bytes));
