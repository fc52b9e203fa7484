//! Commands with arguments by chance: mostly sensible ones, so that they get past the first check.

use engine::rng::SplitMix;

/// What commands are drawn from.
pub struct Chance(pub SplitMix);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0.index(bound)
    }

    fn of<'a>(&mut self, choices: &[&'a [u8]]) -> &'a [u8] {
        choices[self.below(choices.len())]
    }
}

/// Those that change much stand several times.
const COMMANDS: &str = "get set set set setnx setex psetex getset getdel getex getex append strlen getrange substr setrange \
    incr decr incrby decrby incrbyfloat incrbyfloat mget mset hset hset hset hmset hsetnx hget hmget hgetall hdel hexists \
    hlen hkeys hvals hstrlen hincrby hincrbyfloat hscan del unlink exists touch type expire pexpire expireat pexpireat ttl \
    pttl persist expiretime pexpiretime object memory keys wait select ping echo nosuch";
const KEYS: &[&[u8]] = &[b"a", b"b", b"c", b"d", b"e", b"f"];
const WORDS: &[&[u8]] = &[
    b"",
    b" 1",
    b"*",
    b"+5",
    b"-0",
    b"-0.1",
    b"-1",
    b"-9223372036854775808",
    b"-inf",
    b".5",
    b"0",
    b"007",
    b"0x1f",
    b"1",
    b"1.0",
    b"1e-5",
    b"1e3",
    b"1e400",
    b"2.5",
    b"3",
    b"3.14159265358979323846",
    b"4000000000",
    b"4000000000000",
    b"5.",
    b"7.10",
    b"9223372036854775807",
    b"99",
    b"9999999999999999999",
    b"COUNT",
    b"EX",
    b"EXAT",
    b"GET",
    b"GT",
    b"KEEPTTL",
    b"MATCH",
    b"NX",
    b"PERSIST",
    b"PXAT",
    b"WITHVALUES",
    b"XX",
    b"[a-c]",
    b"\0",
    b"\x01\xff",
    b"f",
    b"g",
    b"h?llo",
    b"hash",
    b"hello",
    b"inf",
    b"line\r\nbreak",
    b"lt",
    b"nan",
    b"px",
    b"string",
    b"x\0y",
    b"xx",
];
/// Times that could end while the test runs, on one side first.
const SHORT_TIMES: &[&[u8]] = &[b"1", b"3", b"99"];

/// One command.
pub fn command(chance: &mut Chance) -> Vec<Vec<u8>> {
    let names: Vec<&str> = COMMANDS.split_whitespace().collect();
    let name = names[chance.below(names.len())];
    let mut words: Vec<&[u8]> = vec![name.as_bytes()];
    match name {
        "object" => words.push(b"encoding"),
        "memory" => words.push(b"usage"),
        // It would really wait for replicas, which Redis has none of.
        "wait" => words.push(b"0"),
        _ => {}
    }
    if chance.below(30) > 0 {
        words.push(chance.of(KEYS));
    }
    // Mostly as many as are taken.
    let wanted = match name {
        "get" | "incr" | "decr" | "type" | "ttl" | "pttl" | "hgetall" | "hkeys" | "hvals" | "hlen" | "getdel"
        | "persist" | "object" | "memory" | "select" | "ping" | "keys" => 0,
        "setex" | "psetex" | "getrange" | "substr" | "setrange" | "hsetnx" | "hincrby" | "hincrbyfloat" | "hset" => 2,
        _ => 1,
    };
    let more = if chance.below(3) == 0 { chance.below(4) } else { 0 };
    let only_keys = matches!(name, "mget" | "del" | "unlink" | "exists" | "touch");
    words.extend((0..wanted + more).map(|_| chance.of(if only_keys { KEYS } else { WORDS })));
    settle(name, &mut words);
    words.into_iter().map(<[u8]>::to_vec).collect()
}

/// Takes out what ends the comparison: times that run out, values of gigabytes, cursors that only their maker understands.
fn settle(name: &str, words: &mut [&[u8]]) {
    let is_short = |word: &[u8]| SHORT_TIMES.contains(&word);
    if matches!(name, "setex" | "psetex" | "expire" | "pexpire") && words.len() > 2 && is_short(words[2]) {
        words[2] = b"100000";
    }
    for index in 1..words.len() {
        let unit = words[index - 1].to_ascii_lowercase();
        if matches!(&unit[..], b"ex" | b"px") && is_short(words[index]) {
            words[index] = b"100000";
        }
    }
    if name == "setrange" && words.len() > 2 && words[2].len() > 4 {
        words[2] = b"40";
    }
    if name == "hscan" && words.len() > 2 && words[2].first().is_some_and(|byte| b"+-0123456789".contains(byte)) {
        words[2] = b"0";
    }
}
