#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kv::fuzz::resp_hash(bytes));
