//! What is logged while something runs, and that no secret is in it. The unit tests have this file too.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Everything that `body` logs, at the finest level.
pub fn of(body: impl FnOnce()) -> String {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false);
    tracing::subscriber::with_default(subscriber.with_writer(move || writer.clone()).finish(), body);
    let bytes = log.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    String::from_utf8(bytes).expect("text")
}

/// Panics if a part of `secret` is in the log: as text, in hexadecimal digits, as a list of numbers, in Base64.
pub fn assert_without(log: &str, secret: &[u8]) {
    let base64 = openssl::base64::encode_block(secret);
    assert!(base64.as_bytes().chunks_exact(12).all(|part| !log.contains(str::from_utf8(part).expect("ASCII"))));
    for part in secret.chunks_exact(8) {
        let hex: String = part.iter().map(|byte| format!("{byte:02x}")).collect();
        let list = format!("{part:?}");
        assert!(!log.to_lowercase().contains(&hex) && !log.contains(list.trim_matches(['[', ']'])));
        assert!(str::from_utf8(part).is_err() || !log.as_bytes().windows(8).any(|said| said == part));
    }
}
