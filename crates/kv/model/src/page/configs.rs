//! The configurations of the page model.

use super::Config;
use super::Form::{Displace, Extent, Guest, Inline};
use super::Operation::{Read, Store};

/// The sound groups by name, in the order of their size.
pub const SOUND: [&str; 3] = ["page-small", "page-main", "page-large"];

/// Sound configurations; empty for an unknown name.
pub fn sound(group: &str) -> Vec<Config> {
    let new = Config::new;
    match group {
        "page-small" => vec![
            new("inline|inline|read", &[&[Store(0, 1, Inline)], &[Store(0, 2, Inline)], &[Read(0)]]).unknowns(2),
            new("extent,extent|read", &[&[Store(0, 1, Extent), Store(0, 2, Extent)], &[Read(0)]]).unknowns(2),
            new("guest,inline|read,read", &[&[Store(0, 1, Guest), Store(0, 2, Inline)], &[Read(0), Read(0)]])
                .unknowns(2),
            new("extent|extent", &[&[Store(0, 1, Extent)], &[Store(0, 2, Extent)]]).unknowns(2),
            new("extent|the same written back", &[&[Store(0, 1, Extent)], &[Store(0, 1, Extent)]]).unknowns(2),
            new("inline|displace|read", &[&[Store(0, 1, Inline)], &[Store(1, 11, Displace)], &[Read(0)]]).unknowns(2),
        ],
        "page-main" => vec![
            new("extent|extent|read", &[&[Store(0, 1, Extent)], &[Store(0, 2, Extent)], &[Read(0)]]),
            new("guest|extent|read", &[&[Store(0, 1, Guest)], &[Store(0, 2, Extent)], &[Read(0)]]),
            new(
                "inline,extent|displace|read,read",
                &[&[Store(0, 1, Inline), Store(0, 2, Extent)], &[Store(1, 11, Displace)], &[Read(0), Read(0)]],
            ),
            new(
                "extent,inline|extent of the other key|read",
                &[&[Store(0, 1, Extent), Store(0, 2, Inline)], &[Store(1, 11, Extent)], &[Read(0)]],
            ),
            new(
                "guests both ways|read",
                &[&[Store(0, 1, Guest), Store(0, 2, Inline)], &[Store(1, 11, Guest)], &[Read(0)]],
            )
            .separate_homes(),
            new(
                "displace|displace|read",
                &[&[Store(0, 1, Inline), Store(0, 2, Displace)], &[Store(1, 11, Displace)], &[Read(1)]],
            ),
        ],
        "page-large" => vec![
            new(
                "extent,extent|extent of the other key|read,read",
                &[&[Store(0, 1, Extent), Store(0, 2, Extent)], &[Store(1, 11, Extent)], &[Read(0), Read(0)]],
            )
            .unknowns(2),
            new(
                "extent,inline|extent written back|extent of the other key",
                &[&[Store(0, 1, Extent), Store(0, 2, Inline)], &[Store(0, 1, Extent)], &[Store(1, 11, Extent)]],
            )
            .unknowns(2),
            new(
                "inline,guest|displace,inline|displace",
                &[
                    &[Store(0, 1, Inline), Store(0, 2, Guest)],
                    &[Store(1, 11, Displace), Store(1, 12, Inline)],
                    &[Store(1, 13, Displace)],
                ],
            )
            .unknowns(2),
        ],
        _ => Vec::new(),
    }
}

/// Each rule broken: each must violate.
pub fn broken() -> Vec<Config> {
    let new = Config::new;
    vec![
        new(
            "rule 1: the version of a page repeats",
            &[&[Store(0, 1, Extent)], &[Store(1, 11, Guest), Store(1, 12, Inline)]],
        )
        .separate_homes()
        .under(|r| r.version_repeats = true),
        new(
            "rule 2: a data write is sent again",
            &[&[Store(0, 1, Extent), Store(0, 2, Inline)], &[Store(1, 11, Extent)]],
        )
        .under(|r| r.write_resent = true),
        new("rule 2: an abandoned extent is freed by its writer", &[&[Store(0, 1, Extent)], &[Store(1, 11, Extent)]])
            .under(|r| r.abandoned_freed = true),
        new("rule 3: freed before it is unlinked", &[&[Store(0, 1, Extent), Store(0, 2, Inline)]])
            .under(|r| r.free_before_unlink = true),
        new("rule 3: unknown taken for unlinked", &[&[Store(0, 1, Extent), Store(0, 2, Inline)]])
            .under(|r| r.free_on_doubt = true),
        new("rule 3: freed while its publication may land", &[&[Store(0, 1, Extent)]])
            .under(|r| r.undecided_freed = true),
        new("rule 3: freed whoever owns it", &[&[Store(0, 1, Extent)], &[Store(0, 2, Inline), Store(1, 11, Extent)]])
            .under(|r| r.owner_ignored = true),
        new(
            "rule 3: copies tagged by entry, not by attempt",
            &[&[Store(0, 1, Inline)], &[Store(1, 11, Displace)], &[Store(1, 12, Displace)]],
        )
        .under(|r| r.tag_per_entry = true),
        new(
            "rule 4: the reader takes what stands at the place",
            &[&[Store(0, 1, Extent), Store(0, 2, Inline)], &[Store(1, 11, Extent)], &[Read(0)]],
        )
        .under(|r| r.no_identity = true),
        new("rule 4: the reader judges after one look", &[&[Store(0, 1, Guest), Store(0, 2, Inline)], &[Read(0)]])
            .under(|r| r.no_recheck = true),
        new("rule 5: a data write acknowledged from a volatile cache", &[&[Store(0, 1, Extent)]])
            .under(|r| r.data_write_cached = true),
    ]
}
