//! Entry point for fuzzing: any options may come in, and nothing may panic.

use std::rc::Rc;

use device::Memory;

use crate::export::Export;
use crate::negotiation::{Negotiation, Next, OPTION_HEAD_BYTES};
use crate::wire::{OPTION_BYTES_MAX, four};

/// Answers options as they stand in `bytes`. What is asked for is answered, whatever it is.
///
/// # Panics
/// An option was not answered.
pub fn negotiation(bytes: &[u8]) {
    let export = |name: &str, blocks: u64| {
        let memory = Memory::new(blocks * 4096, 4096, [1; 16]).expect("invariant: a size that can be");
        Rc::new(Export::new(name, "", memory.into(), false))
    };
    let exports = [export("a", 16), export("b", 1)];
    let Some((&first, mut rest)) = bytes.split_first() else { return };
    let Some(mut negotiation) = Negotiation::new(&exports, u32::from(first & 3), first & 4 != 0) else { return };
    while let Some((head, more)) = rest.split_first_chunk::<OPTION_HEAD_BYTES>() {
        // The magic number would be found by no chance.
        let (option, length) = (four(&head[8..]) & 15, four(&head[12..]));
        if length > OPTION_BYTES_MAX {
            assert!(!negotiation.too_big(option).is_empty());
            return;
        }
        let (data, more) = more.split_at(more.len().min(length as usize));
        let (reply, next) = negotiation.answer(option, data);
        match next {
            Next::Option => assert!(reply.len() >= 20, "every option is answered"),
            Next::Tls => negotiation.secured(),
            Next::Commands(_) | Next::End => return,
        }
        rest = more;
    }
}
