#![no_main]

use std::rc::Rc;

use device::Memory;
use nbd::Export;

thread_local! {
    static EXPORTS: Vec<Rc<Export>> = [("a", 1 << 20), ("b", 1 << 16)]
        .map(|(name, bytes)| {
            let memory = Memory::new(bytes, 4096, [1; 16]).expect("a namespace");
            Rc::new(Export::new(name, "", memory.into(), false))
        })
        .into();
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| EXPORTS.with(|exports| nbd::fuzz_negotiation(exports, bytes)));
