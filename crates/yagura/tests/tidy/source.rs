//! A Rust source as the lint sees it: the same text with comments and the insides of literals blanked, so that a rule
//! that looks for `unwrap` is not fooled by prose. Blanking keeps every byte's place, so lines and offsets agree.

use std::ops::Range;

/// One source file in three views of equal length.
pub struct Source {
    /// Path from the root of the tree, with `/`.
    pub path: String,
    pub text: String,
    /// `text` with comments and the contents of string and character literals replaced by spaces.
    pub code: String,
    /// `text` with everything but comments replaced by spaces.
    pub comments: String,
    /// Byte ranges of items under `#[cfg(test)]`.
    test_items: Vec<Range<usize>>,
    /// The whole file is compiled for tests only, or says of itself that it only judges others (`//! tidy: proof: why`).
    pub is_test: bool,
}

impl Source {
    pub fn new(path: &str, text: String, is_test: bool) -> Source {
        let (code, comments) = blank(&text);
        let test_items = test_items(&code);
        let is_test = is_test || comments.contains("//! tidy: proof: ");
        Source { path: path.to_owned(), text, code, comments, test_items, is_test }
    }

    /// 1-based line of a byte offset.
    pub fn line_of(&self, offset: usize) -> usize {
        self.code[..offset].bytes().filter(|&byte| byte == b'\n').count() + 1
    }

    pub fn in_test(&self, offset: usize) -> bool {
        self.is_test || self.test_items.iter().any(|range| range.contains(&offset))
    }

    /// The code without what is under `#[cfg(test)]`, every byte in its place; nothing of a file for tests.
    pub fn product_code(&self) -> String {
        let mut code = self.code.clone();
        let whole = self.is_test.then_some(0..code.len());
        for range in self.test_items.iter().cloned().chain(whole) {
            code.replace_range(range.clone(), &" ".repeat(range.len()));
        }
        code
    }

    /// The comments on the line of `offset` and on the `above` lines before it, documentation left out: that says what
    /// an item is for, not why one line in it is safe.
    pub fn comment_near(&self, offset: usize, above: usize) -> String {
        let lines = self.comment_lines(offset, above);
        lines.filter(|line| !line.starts_with("///") && !line.starts_with("//!")).collect::<Vec<_>>().join(" ")
    }

    /// Whether there is any comment on the line of `offset` or on the `above` lines before it.
    pub fn is_described(&self, offset: usize, above: usize) -> bool {
        self.comment_lines(offset, above).next().is_some()
    }

    fn comment_lines(&self, offset: usize, above: usize) -> impl Iterator<Item = &str> {
        let line = self.line_of(offset);
        let near = self.comments.lines().skip(line.saturating_sub(above + 1)).take(line.min(above + 1));
        near.map(str::trim).filter(|line| !line.is_empty())
    }

    /// Offsets of `needle` in the code, where it is no part of a longer word.
    pub fn find(&self, needle: &str) -> Vec<usize> {
        find_words(&self.code, needle)
    }

    /// Byte range of each function, from `fn` to its closing brace, with its name.
    pub fn functions(&self) -> Vec<(String, Range<usize>)> {
        let mut functions = Vec::new();
        for start in self.find("fn") {
            let name: String = self.code[start + 2..].trim_start().chars().take_while(|&c| is_word(c)).collect();
            let Some(open) = body_of(&self.code, start) else { continue };
            if !name.is_empty() {
                functions.push((name, start..closing(&self.code, open)));
            }
        }
        functions
    }

    /// `mod name;` declarations: name, the `#[path]` if there is one, and whether it is under `#[cfg(test)]`.
    pub fn file_modules(&self) -> Vec<(String, Option<String>, bool)> {
        let mut modules = Vec::new();
        for start in self.find("mod") {
            let rest = self.code[start + 3..].trim_start();
            let name: String = rest.chars().take_while(|&c| is_word(c)).collect();
            if name.is_empty() || !rest[name.len()..].trim_start().starts_with(';') {
                continue;
            }
            let head = self.code[..start].rfind([';', '}', '{']).map_or(0, |end| end + 1);
            let attributes = &self.text[head..start];
            let path = attributes.split_once("#[path = \"").and_then(|(_, rest)| rest.split('"').next());
            modules.push((name, path.map(str::to_owned), self.in_test(start)));
        }
        modules
    }
}

pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

pub fn find_words(haystack: &str, needle: &str) -> Vec<usize> {
    let word_first = needle.starts_with(is_word);
    let word_last = needle.ends_with(is_word);
    let found = haystack.match_indices(needle).map(|(at, _)| at);
    found
        .filter(|&at| !word_first || !haystack[..at].ends_with(is_word))
        .filter(|&at| !word_last || !haystack[at + needle.len()..].starts_with(is_word))
        .collect()
}

/// The `{` that opens the body of the function at `start`; `None` for a declaration without a body.
fn body_of(code: &str, start: usize) -> Option<usize> {
    let mut depth = 0_i32;
    for (at, byte) in code.bytes().enumerate().skip(start) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'{' if depth == 0 => return Some(at),
            b';' if depth == 0 => return None,
            _ => {}
        }
        if depth < 0 {
            return None; // A function type within brackets.
        }
    }
    None
}

/// One past the brace that closes the one at `open`; the end of the text if none does.
pub fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0_u32;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

fn test_items(code: &str) -> Vec<Range<usize>> {
    let marks = code.match_indices("#[cfg(test)]").chain(code.match_indices("#[cfg(all(test"));
    marks
        .map(|(start, mark)| {
            let rest = start + mark.len();
            let end = code[rest..].find(['{', ';']).map_or(code.len(), |at| rest + at);
            if code[end..].starts_with('{') { start..closing(code, end) } else { start..end + 1 }
        })
        .collect()
}

#[derive(Clone, Copy)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// Splits `text` into its code view and its comment view.
fn blank(text: &str) -> (String, String) {
    let (mut code, mut comments) = (String::with_capacity(text.len()), String::with_capacity(text.len()));
    let mut rest = text;
    while !rest.is_empty() {
        let (kind, length) = token(rest, code.chars().next_back());
        let (piece, tail) = rest.split_at(length);
        for c in piece.chars() {
            // One space for each byte, so that offsets agree in all views.
            let hidden = if c == '\n' { "\n".to_owned() } else { " ".repeat(c.len_utf8()) };
            let (in_code, in_comments) = match kind {
                Kind::Code => (c.to_string(), hidden),
                Kind::Comment => (hidden, c.to_string()),
                Kind::Literal => (hidden.clone(), hidden),
            };
            code.push_str(&in_code);
            comments.push_str(&in_comments);
        }
        rest = tail;
    }
    (code, comments)
}

/// Kind and length of the token that `rest` starts with. Literals keep no delimiter: the views show blanks for them.
fn token(rest: &str, before: Option<char>) -> (Kind, usize) {
    let after_word = before.is_some_and(is_word);
    if rest.starts_with("//") {
        return (Kind::Comment, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (Kind::Comment, block_comment(rest));
    }
    if !after_word {
        for prefix in ["br", "cr", "r"] {
            let Some(tail) = rest.strip_prefix(prefix) else { continue };
            let hashes = tail.len() - tail.trim_start_matches('#').len();
            if tail[hashes..].starts_with('"') {
                let open = prefix.len() + hashes + 1;
                let close = format!("\"{}", "#".repeat(hashes));
                let length = rest[open..].find(&close).map_or(rest.len(), |at| open + at + close.len());
                return (Kind::Literal, length);
            }
        }
    }
    if rest.starts_with('"') {
        return (Kind::Literal, quoted(rest, '"'));
    }
    if let Some(tail) = rest.strip_prefix('\'') {
        // A lifetime or a label is a quote that no second one follows after one character.
        let second = tail.chars().nth(1);
        if tail.starts_with('\\') || second == Some('\'') {
            return (Kind::Literal, quoted(rest, '\''));
        }
    }
    (Kind::Code, rest.chars().next().map_or(0, char::len_utf8))
}

/// Length of a literal that starts with `quote`, escapes respected.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Length of a block comment; they nest.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0_u32, 0);
    while at < rest.len() {
        let tail = &rest.as_bytes()[at..];
        if tail.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if tail.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}
