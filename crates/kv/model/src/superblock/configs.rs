//! The configurations of the model of one voter.

use super::Operation::{Open, Propose, Raise};
use super::{Config, OTHER, Operation, Rules};

/// The names of the sound groups.
pub const SOUND: [&str; 3] = ["superblock", "superblock-large", "superblock-open"];

/// Sound configurations; empty for an unknown name.
pub fn sound(group: &str) -> Vec<Config> {
    let new = Config::new;
    let lose_one = |c: &mut Config| c.losses = 1;
    match group {
        "superblock" => vec![
            new("superblock: propose|propose", &[&[Propose(1, 1)], &[Propose(2, 2)]]),
            new("superblock: propose|raise, copy A lost", &[&[Propose(1, 1)], &[Raise]]).with(lose_one),
            new("superblock: propose|open, copy A lost", &[&[Propose(1, 1), Propose(2, 2)], &[Open]]).with(lose_one),
        ],
        "superblock-large" => vec![
            new("superblock: raise,propose|propose", &[&[Raise, Propose(1, 1)], &[Propose(2, 2)]]).with(lose_one),
            new("superblock: propose|propose, copy A lost", &[&[Propose(1, 1)], &[Propose(2, 2)]]).with(lose_one),
            new(
                "superblock: propose|three times",
                &[&[Propose(1, 1)], &[Propose(2, 2), Propose(3, 3), Propose(4, OTHER)]],
            ),
            new("superblock: propose|propose|open", &[&[Propose(1, 1)], &[Propose(2, 2)], &[Open]]).with(lose_one),
        ],
        "superblock-open" => vec![
            new("superblock: propose,propose|propose", &[&[Propose(1, 1), Propose(3, 3)], &[Propose(2, 2)]])
                .with(|c| (c.unknowns, c.losses) = (2, 1)),
        ],
        _ => Vec::new(),
    }
}

/// Each rule broken: each must violate.
pub fn broken() -> Vec<Config> {
    let two: [&[Operation]; 2] = [&[Propose(1, 1)], &[Propose(2, 2)]];
    let long: [&[Operation]; 2] = [&[Propose(1, 1)], &[Propose(2, 2), Propose(3, 3), Propose(4, OTHER)]];
    let new = |name, hosts: &[&[Operation]], rules: Rules| Config { rules, ..Config::new(name, hosts) };
    let none = Rules::default();
    let lose_one = |c: &mut Config| c.losses = 1;
    vec![
        new("superblocks: counts before copy B is stable", &two, Rules { first_copy_alone: true, ..none.clone() })
            .with(lose_one),
        new("superblocks: counts if copy B is as new", &two, Rules { follows_by_generation: true, ..none.clone() })
            .with(lose_one),
        new("superblocks: copy B goes back", &two, Rules { follows_back: true, ..none.clone() }).with(lose_one),
        new("superblocks: written over the map in force", &two, Rules { same_slot: true, ..none.clone() }),
        new(
            "superblocks: the promise looked at before the leaves",
            &two,
            Rules { promise_first: true, ..none.clone() },
        ),
        new("superblocks: accepted from any image", &two, Rules { from_any_image: true, ..none.clone() }),
        new("superblocks: leaves without a ballot", &long, Rules { leaf_without_ballot: true, ..none.clone() }),
        new(
            "superblocks: opened before copy B is stable",
            &[&[Propose(1, 1), Propose(2, 2)], &[Open]],
            Rules { opens_unfinished: true, ..none.clone() },
        )
        .with(lose_one),
        new(
            "superblocks: opened by copy A before copy B",
            &[&[Propose(1, 1), Propose(2, 2)], &[Open]],
            Rules { opens_first_copy_first: true, mends_without_bump: true, ..none.clone() },
        )
        .with(lose_one),
        new(
            "superblocks: copy A mended from copy B as it is",
            &[&[Propose(1, 1), Propose(2, 2)], &[Open]],
            Rules { mends_without_bump: true, ..none.clone() },
        )
        .with(lose_one),
        new(
            "superblocks: raised in copy A before copy B",
            &[&[Raise, Propose(1, 1)], &[Propose(2, 2)]],
            Rules { raises_first_copy_first: true, ..none.clone() },
        )
        .with(lose_one),
    ]
}
