#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| volume::fuzz::stream_decode(bytes));
