//! `lru_crawler metadump`: a line for each item.

use std::fmt::Write as _;

use super::holdings::Listed;
use super::statistics::unix;
use super::watch::Escaped;
use crate::protocol::item_bytes;
use crate::session::CLASS;

/// Appends the line of an item.
pub(super) fn line(text: &mut String, item: &Listed<'_>, began: u64) {
    let meta = &item.meta;
    let expires = unix(meta.expires, began).map_or("-1".to_owned(), |at| at.to_string());
    let accessed = unix(meta.accessed, began).unwrap_or(began);
    let fetched = if meta.fetched { "yes" } else { "no" };
    let bytes = item_bytes(item.key.len(), meta.flags, item.value_bytes);
    let (key, cas) = (Escaped(item.key), meta.cas.0);
    let written =
        writeln!(text, "key={key} exp={expires} la={accessed} cas={cas} fetch={fetched} cls={CLASS} size={bytes}");
    written.expect("invariant: a string takes all that is written to it");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::{Cas, Meta, NEVER, Seconds};

    /// Both lines are what memcached 1.6.18 wrote.
    #[test]
    fn lines_are_as_memcached_writes_them() {
        let mut text = String::new();
        let began = 1_795_367_745;
        let meta = |expires, cas, fetched| Meta { expires, cas, fetched, accessed: Seconds(2), ..Meta::default() };
        line(&mut text, &Listed { key: b"a\x01%b", meta: meta(Seconds(102), Cas(1), true), value_bytes: 1 }, began);
        line(&mut text, &Listed { key: b"b", meta: meta(NEVER, Cas(2), false), value_bytes: 5 }, began);
        let expected = "key=a%01%25b exp=1795367847 la=1795367747 cas=1 fetch=yes cls=1 size=64\n\
                        key=b exp=-1 la=1795367747 cas=2 fetch=no cls=1 size=65\n";
        assert_eq!(text, expected);
    }
}
