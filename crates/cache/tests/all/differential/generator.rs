//! Random commands over few keys, most of them right.
//!
//! One thing is left out: a number that gets shorter while an answer with it still waits to be sent. memcached then makes a
//! new item instead of filling the old one's place with blanks; whether it waits depends on the network.

use engine::rng::SplitMix;

/// A stream of commands from a seed.
pub struct Generator {
    random: SplitMix,
}

const KEYS: &[&str] = &["a", "b", "counter", "Zm9v", "foo", "long-key-0123456789"];

impl Generator {
    pub fn new(seed: u64) -> Generator {
        Generator { random: SplitMix(seed) }
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    pub fn key(&mut self) -> &'static str {
        self.pick(KEYS)
    }

    /// A number that is mostly small.
    pub fn number(&mut self) -> String {
        match self.below(12) {
            0 => "18446744073709551615".into(),
            1 => "-1".into(),
            2 => "x".into(),
            3 => self.below(1 << 40).to_string(),
            _ => self.below(20).to_string(),
        }
    }

    pub fn value(&mut self) -> Vec<u8> {
        match self.below(8) {
            0 => Vec::new(),
            1..=4 => self.below(2000).to_string().into_bytes(),
            // With newlines: where a spoilt length makes lines of it, how they arrive does not matter.
            5 => (0..self.below(70_000)).map(|at| if at % 997 == 996 { b'\n' } else { b'z' }).collect(),
            _ => (0..self.below(60)).map(|_| self.below(256) as u8).collect(),
        }
    }

    /// Far away, or past: nothing is to expire while the test runs.
    fn expiry(&mut self) -> i64 {
        self.pick(&[0, 0, 0, 0, 10_000, 200_000, -1, 2_592_001, 4_000_000_000])
    }

    /// Some commands, to be sent together.
    pub fn text_batch(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // See at the top.
        let mut may_count = true;
        for _ in 0..1 + self.below(8) {
            let command = match self.below(10) {
                0..=2 => {
                    may_count = false;
                    self.retrieval()
                }
                3..=4 => self.storage(),
                5 if may_count => self.counting(),
                5..=6 => self.other(),
                7 if may_count => self.meta_counting(),
                7 => self.meta_storage(),
                8 => {
                    may_count = false;
                    self.meta_retrieval()
                }
                _ => self.meta_storage(),
            };
            bytes.extend(self.spoilt(command));
        }
        bytes
    }

    /// Now and then a line is not as it should be.
    fn spoilt(&mut self, mut command: Vec<u8>) -> Vec<u8> {
        if !self.one_in(8) {
            return command;
        }
        let line = command.iter().position(|&byte| byte == b'\n').unwrap_or(command.len());
        let at = self.below(line.max(1) as u64) as usize;
        match self.below(3) {
            0 => command[at] = self.pick(b" \0x09azT\x7f\xff"),
            1 => command.insert(at, self.pick(b" \0x09azT-")),
            _ => {
                command.remove(at);
            }
        }
        // What has become of a length is not to swallow what follows.
        command.extend_from_slice(b"\r\n");
        let is_long = command.len() > 2000;
        if is_long { b"version\r\n".to_vec() } else { command }
    }

    fn retrieval(&mut self) -> Vec<u8> {
        let mut line = match self.pick(&["get", "gets", "gat", "gats"]) {
            name @ ("gat" | "gats") => format!("{name} {}", self.expiry()),
            name => name.to_string(),
        };
        for _ in 0..1 + self.below(4) {
            line.push(' ');
            line.push_str(self.key());
        }
        line.push_str("\r\n");
        line.into_bytes()
    }

    fn storage(&mut self) -> Vec<u8> {
        let name = self.pick(&["set", "set", "set", "add", "replace", "append", "prepend", "cas"]);
        let value = self.value();
        let (key, flags, expiry) = (self.key(), self.below(3), self.expiry());
        let mut line = format!("{name} {key} {flags} {expiry} {}", value.len());
        if name == "cas" {
            line.push_str(&format!(" {}", self.below(300)));
        }
        if self.one_in(6) {
            line.push_str(" noreply");
        }
        [line.as_bytes(), b"\r\n", &value, b"\r\n"].concat()
    }

    fn counting(&mut self) -> Vec<u8> {
        let name = self.pick(&["incr", "decr"]);
        let noreply = if self.one_in(6) { " noreply" } else { "" };
        format!("{name} {} {}{noreply}\r\n", self.key(), self.number()).into_bytes()
    }

    fn other(&mut self) -> Vec<u8> {
        let noreply = if self.one_in(6) { " noreply" } else { "" };
        match self.below(8) {
            0..=3 => format!("delete {}{noreply}\r\n", self.key()),
            4..=5 => format!("touch {} {}{noreply}\r\n", self.key(), self.expiry()),
            6 if self.one_in(8) => format!("flush_all{noreply}\r\n"),
            _ => "version\r\n".into(),
        }
        .into_bytes()
    }

    fn flags(&mut self, names: &[&str]) -> String {
        let mut flags = String::new();
        for name in names {
            if !self.one_in(4) {
                continue;
            }
            flags.push(' ');
            flags.push_str(name);
            match *name {
                "O" => flags.push_str(&self.below(1000).to_string()),
                // Not what `T` and `N` are, so that the tick of a clock decides nothing.
                "R" => flags.push_str(&self.pick(&[0, 5_000, 30_000, 100_000]).to_string()),
                "T" | "N" => flags.push_str(&self.pick(&[0, 10_000, 50_000, 200_000]).to_string()),
                "F" | "C" | "D" | "J" => flags.push_str(&self.number()),
                "M" => flags.push(char::from(self.pick(b"EAPRSID+-x"))),
                _ => {}
            }
        }
        flags
    }

    fn meta_retrieval(&mut self) -> Vec<u8> {
        let flags = self.flags(&["v", "k", "b", "c", "f", "h", "s", "O", "T", "t", "N", "R", "q", "u", "l"]);
        format!("mg {}{flags}\r\n", self.key()).into_bytes()
    }

    fn meta_counting(&mut self) -> Vec<u8> {
        // No `T`: where the number gets longer, memcached sets it on the item that it has just replaced.
        let flags = self.flags(&["v", "k", "b", "c", "O", "t", "N", "J", "D", "M", "C", "q"]);
        format!("ma {}{flags}\r\n", self.key()).into_bytes()
    }

    fn meta_storage(&mut self) -> Vec<u8> {
        if self.one_in(3) {
            let flags = self.flags(&["k", "b", "O", "T", "C", "q", "I"]);
            return format!("md {}{flags}\r\n", self.key()).into_bytes();
        }
        let value = self.value();
        let flags = self.flags(&["k", "b", "c", "F", "O", "T", "C", "q", "I", "M"]);
        [format!("ms {} {}{flags}\r\n", self.key(), value.len()).as_bytes(), &value, b"\r\n"].concat()
    }

    /// Sets the key of this number among very many.
    pub fn wide_set(&mut self, number: u64) -> Vec<u8> {
        let value = self.wide_value(number);
        [format!("set wide{number} {} 0 {} noreply\r\n", number % 3, value.len()).as_bytes(), &value, b"\r\n"].concat()
    }

    /// One in ten is a number; few are long.
    fn wide_value(&mut self, number: u64) -> Vec<u8> {
        match (number % 10, self.below(400)) {
            (0, _) => self.below(1000).to_string().into_bytes(),
            (_, 0) => vec![b'l'; 60_000 + self.below(20_000) as usize],
            _ => vec![b'a' + (number % 26) as u8; self.below(4500) as usize],
        }
    }

    /// Some commands over very many keys, to be sent together.
    pub fn wide_batch(&mut self, keys: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        // See at the top.
        let may_count = self.one_in(2);
        for _ in 0..1 + self.below(12) {
            let number = self.below(keys);
            let line = match self.below(20) {
                0..=3 => {
                    bytes.extend(self.wide_set(number));
                    continue;
                }
                4..=6 | 19 if may_count => format!("touch wide{number} 10000\r\nincr wide{} 7", number / 10 * 10),
                4..=8 => {
                    let others: Vec<String> =
                        (0..self.below(50)).map(|_| format!(" wide{}", self.below(keys))).collect();
                    format!("gets wide{number}{}", others.concat())
                }
                9 if !may_count => format!("gats 0 wide{number} wide{}", number / 2),
                10 if !may_count => format!("mg wide{number} s v f c k"),
                11 if may_count => format!("ma wide{} N0 v c D3", number / 10 * 10),
                12 => format!("append wide{number} 0 0 3\r\nxyz"),
                13 => format!("prepend wide{number} 0 0 3 noreply\r\nxyz"),
                14 => format!("delete wide{number}"),
                15 => format!("cas wide{number} 0 0 1 {}\r\nc", self.below(30_000)),
                16 => format!("add wide{number} 0 0 1\r\na"),
                17 => format!("replace wide{number} 0 0 1\r\nr"),
                18 => format!("md wide{number} q C{}", self.below(30_000)),
                _ => format!("touch wide{number} 0"),
            };
            bytes.extend_from_slice(line.as_bytes());
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    }

    /// Some requests of the binary protocol, to be sent together.
    pub fn binary_batch(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut may_count = true;
        for _ in 0..1 + self.below(8) {
            let opcode = self.pick(&[
                0x00, 0x09, 0x0c, 0x0d, 0x1c, 0x1d, 0x1e, 0x23, 0x24, 0x01, 0x01, 0x11, 0x02, 0x12, 0x03, 0x13, 0x04,
                0x14, 0x05, 0x06, 0x15, 0x16, 0x0e, 0x0f, 0x19, 0x1a, 0x08, 0x0a, 0x0b, 0x50,
            ]);
            let is_count = matches!(opcode, 0x05 | 0x06 | 0x15 | 0x16);
            let is_get = matches!(opcode, 0x00 | 0x09 | 0x0c | 0x0d | 0x1c | 0x1d | 0x1e | 0x23 | 0x24);
            if is_count && !may_count || opcode == 0x08 && !self.one_in(8) {
                continue;
            }
            may_count &= !is_get;
            bytes.extend(self.request(opcode));
        }
        bytes
    }

    fn request(&mut self, opcode: u8) -> Vec<u8> {
        let expiry = self.pick(&[0u32, 0, 100, 1000, 2_592_001, u32::MAX]).to_be_bytes();
        let extras: Vec<u8> = match opcode {
            0x01 | 0x11 | 0x02 | 0x12 | 0x03 | 0x13 => [[0, 0, 0, self.below(3) as u8], expiry].concat(),
            0x05 | 0x06 | 0x15 | 0x16 => {
                let (delta, initial) = (self.below(50).to_be_bytes(), self.below(100).to_be_bytes());
                [&delta[..], &initial, &expiry].concat()
            }
            0x1c | 0x1d | 0x1e | 0x23 | 0x24 => expiry.to_vec(),
            _ => Vec::new(),
        };
        let key = if matches!(opcode, 0x08 | 0x0a | 0x0b | 0x50) { "" } else { self.key() };
        let has_value = matches!(opcode, 0x01 | 0x11 | 0x02 | 0x12 | 0x03 | 0x13 | 0x0e | 0x0f | 0x19 | 0x1a);
        let value = if has_value { self.value() } else { Vec::new() };
        let cas = if self.one_in(5) { self.below(300) } else { 0 };
        super::binary::request(opcode, &extras, key.as_bytes(), &value, cas)
    }
}
