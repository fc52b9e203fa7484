//! Hand-written cases: each is sent on a connection of its own, and what it leaves is there for the next.

fn key(bytes: usize) -> String {
    "k".repeat(bytes)
}

fn all(cases: impl IntoIterator<Item = impl Into<Vec<u8>>>) -> Vec<Vec<u8>> {
    cases.into_iter().map(Into::into).collect()
}

/// The text protocol.
pub fn text() -> Vec<Vec<u8>> {
    let administration = [administration(), crawling(), reassigning(), extstore()].concat();
    [items(), counting(), noreply(), flushing(), lines(), http(), administration, keys()].concat()
}

/// Reading, storing, flushing.
fn items() -> Vec<Vec<u8>> {
    all([
        "set a 0 0 1\r\nx\r\nget a\r\ngets a\r\nget a b\r\nget b\r\nget a a a\r\n",
        "set a 5 0 0\r\n\r\nget a\r\nadd a 0 0 1\r\ny\r\nadd b 7 0 1\r\ny\r\nget a b\r\n",
        "replace a 9 0 2\r\nzz\r\nreplace nothing 0 0 1\r\nx\r\nget a nothing\r\n",
        "append a 1 1 3\r\n123\r\nprepend a 1 1 3\r\n456\r\ngets a\r\nappend nothing 0 0 1\r\nx\r\nprepend nothing 0 0 1\r\nx\r\n",
        "set c 0 0 1\r\n1\r\ngets c\r\ncas c 0 0 1 1\r\n2\r\ncas nothing 0 0 1 1\r\nx\r\ncas c 0 0 1 0\r\nx\r\ngets c\r\n",
        "cas c 1 0 1 9\r\nx\r\ncas c 1 0 1 10\r\nx\r\ncas c 1 0 1 11\r\nx\r\ncas c 1 0 1 12\r\nx\r\ngets c\r\n",
        "gets c a b nothing\r\ngat 0 c\r\ngats 0 c a\r\ngat 100 nothing\r\ngats 2592000 c\r\nbget a\r\n",
        "gat -1 c\r\nget c\r\nset c 0 0 1\r\nx\r\ngat 2592001 c\r\nget c\r\n",
        "set d 0 -1 1\r\nx\r\nget d\r\nset d 0 2592001 1\r\nx\r\nget d\r\nset d 0 4102444800 1\r\nx\r\nget d\r\n",
        "set d 0 2147483647 1\r\nx\r\nget d\r\nset d 0 2147483648 1\r\nx\r\nget d\r\n",
        "delete a\r\ndelete a\r\nget a\r\ndelete b 0\r\ndelete b noreply\r\ndelete c 0 noreply\r\nget a b c\r\n",
        "touch d 0\r\nset d 0 0 1\r\nx\r\ntouch d 100\r\ntouch d -1\r\nget d\r\n",
        "set a\tb 0 0 1\r\nx\r\nget a\tb\r\nset \x01\x7f 0 0 1\r\nx\r\nget \x01\x7f\r\n",
    ])
}

/// Numbers.
fn counting() -> Vec<Vec<u8>> {
    all([
        "set n 0 0 2\r\n10\r\nincr n 5\r\ndecr n 7\r\nincr nothing 1\r\ndecr nothing 1\r\nincr n 100\r\ngets n\r\n",
        "set n 3 100 3\r\n100\r\ndecr n 99\r\ngets n\r\n",
        "incr n 9\r\ngets n\r\n",
        "set n 0 0 20\r\n18446744073709551615\r\nincr n 1\r\nget n\r\n",
        "set n 0 0 20\r\n18446744073709551615\r\nincr n 18446744073709551615\r\ndecr n 18446744073709551615\r\nincr n 18446744073709551616\r\n",
        "set n 0 0 20\r\n18446744073709551616\r\nincr n 1\r\nset n 0 0 1\r\n5\r\ndecr n 10\r\n",
        "set n 0 0 21\r\n000000000000000000001\r\nincr n 1\r\nget n\r\n",
        "set n 0 0 3\r\n 1 \r\nincr n 1\r\nget n\r\n",
        "set n 0 0 2\r\n-1\r\nincr n 1\r\nset n 0 0 21\r\n-18446744073709551615\r\nincr n 1\r\n",
        // Of a value of nothing but spaces memcached reads on in what its memory held before: `session::tests` has those.
        "set n 0 0 2\r\n+1\r\nincr n 1\r\nset n 0 0 2\r\n x\r\nincr n 1\r\n",
        "set n 0 0 4\r\n1abc\r\nincr n 1\r\nset n 0 0 4\r\n1\tbc\r\nincr n 1\r\nget n\r\n",
        "set n 0 0 2\r\n1\0\r\nincr n 1\r\nget n\r\nset n 0 0 3\r\n1\0x\r\nincr n 1\r\nget n\r\n",
        "set n 0 0 1\r\n5\r\nincr n -1\r\nincr n -18446744073709551615\r\nincr n +1\r\nincr n 0x10\r\nincr n 1x\r\nincr n\r\n",
        "incr n 1 2\r\nincr n 1 2 3\r\nincr n x\r\nincr n x noreply\r\nincr n 1 noreply\r\ndecr n 1 noreply\r\nget n\r\nincr\r\ndecr\r\n",
    ])
}

/// `noreply`, where it is known and where not.
fn noreply() -> Vec<Vec<u8>> {
    all([
        "set a 0 0 1 noreply\r\nx\r\nadd a 0 0 1 noreply\r\nx\r\nreplace z 0 0 1 noreply\r\nx\r\nappend a 0 0 1 noreply\r\ny\r\n",
        "prepend a 0 0 1 noreply\r\nz\r\ncas a 0 0 1 1 noreply\r\nx\r\nget a\r\ntouch a 0 noreply\r\ntouch zz 0 noreply\r\n",
        "set a 0 0 1 noreply\r\nxyz\r\nmn\r\n",
        "set a 0 0 1 norepl\r\nx\r\nset a x 0 1 noreply\r\nset a 0 0 noreply\r\nset noreply 0 0 1\r\nx\r\nget noreply\r\n",
        "verbosity 0 noreply\r\nverbosity noreply\r\nverbosity x noreply\r\nflush_all 0 noreply\r\nflush_all noreply\r\n",
        "flush_all x noreply\r\nflush_all noreply 0\r\nflush_all noreply noreply\r\nversion noreply\r\nstats noreply\r\n",
        "delete a 1 noreply\r\ndelete a noreply 0\r\ndelete noreply\r\ndelete noreply noreply\r\n",
        "get noreply\r\nget a noreply\r\nlru mode flat noreply\r\nslabs automove 0 noreply\r\nlru_crawler tocrawl noreply\r\n",
        "lru_crawler sleep noreply\r\nlru_crawler noreply\r\nslabs reassign 1 noreply\r\nslabs noreply\r\ncache_memlimit noreply\r\n",
    ])
}

/// `flush_all`.
fn flushing() -> Vec<Vec<u8>> {
    all([
        "set a 0 0 1\r\nx\r\nflush_all\r\nget a\r\nset a 0 0 1\r\nx\r\nget a\r\nflush_all 0\r\nget a\r\nflush_all -1\r\n",
        "flush_all x\r\nflush_all 0 0\r\nflush_all 0 0 0\r\nflush_all 1x\r\nset a 0 0 1\r\nx\r\ngets a\r\n",
    ])
}

/// Lines that are not what they should be.
fn lines() -> Vec<Vec<u8>> {
    all([
        "\r\n",
        "\n",
        "\n\n\n",
        "\r\r\n",
        " \r\n",
        "  get a \r\n",
        "get a\nget a\n",
        "get a\r\r\n",
        "get  a   b  \r\n",
        "\tget a\r\n",
        "get\ta\r\n",
        "get a\0b\r\n",
        "\0get a\r\n",
        "get\0 a\r\n",
        "set a\0 0 0 1\r\nx\r\n",
        "set  a   0  0  1  \r\nx\r\nget a\r\n",
        "set a 0 0 1\nx\r\nget a\r\n",
        "set a 0 0 1\r\nx\n\nget a\r\n",
        "GET a\r\nGet a\r\nSET a 0 0 1\r\nx\r\n",
        "x\r\nxx\r\ng\r\nge\r\ngett a\r\nm\r\nmx\r\nmm a\r\ns\r\nset\r\na\r\nc\r\ncas\r\ni\r\nd\r\nt\r\ntouch\r\n",
        "get\r\nget \r\ngets\r\ngat\r\ngat 0\r\ngats 0\r\ngat x a\r\ngat 1x a\r\ngat a\r\ngats\r\nbget\r\ngat 0 \r\n",
        "set a 0 0 -1\r\nset a 0 0 x\r\nset a 0 0 1x\r\nset a 0 x 1\r\nset a x 0 1\r\nset a 0 0\r\nset a 0 0 1 2 3\r\n",
        "set a -1 0 1\r\nx\r\nset a 4294967295 0 1\r\nx\r\nget a\r\nset a 4294967296 0 1\r\nx\r\nget a\r\n",
        "set a 18446744073709551615 0 1\r\nx\r\nget a\r\nset a 18446744073709551616 0 1\r\nx\r\nset a +1 +0 +1\r\nx\r\nget a\r\n",
        "set a 1\t2 0 1\r\nx\r\nget a\r\nset a \t 0 1\r\nx\r\nset a 0 0 1\r\r\nx\r\n",
        "set a 0 0 4294967297\r\nx\r\nget a\r\nset a 0 0 2147483646\r\nset a 0 0 2147483647\r\nset a 0 0 9999999999999999999999\r\n",
        "set a 0 9999999999999999999999 1\r\nx\r\nset a 0 -9223372036854775808 1\r\nx\r\nget a\r\n",
        "set a 0 0 2\r\nabc\r\nset a 0 0 2\r\nabcdef\r\nset a 0 0 2\r\na\r\nb\r\nset a 0 0 2\r\n\r\n\r\nget a\r\n",
        "set a 0 0 0\r\nxx\r\nget a\r\nset a 0 0 0\r\n\n\r\n",
        "cas a 0 0 1\r\ncas a 0 0 1 x\r\ncas a 0 0 1 -1\r\ncas a 0 0 1 1 2 3\r\ncas a 0 0 x 1\r\n",
        "touch a\r\ntouch a x\r\ntouch a 0 1\r\ntouch a 0 1 2\r\ndelete\r\ndelete a 1\r\ndelete a 0 0\r\ndelete a b c d\r\n",
        "append a\r\nprepend a 0 0\r\nreplace a 0 0 1 2 3 4\r\nadd\r\nadd a\r\n",
    ])
}

/// Requests of HTTP, and what only looks like one.
fn http() -> Vec<Vec<u8>> {
    let mut cases = all([
        "GET / HTTP/1.0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nversion\r\n",
        "PUT /a HTTP/1.1\r\n",
        "DELETE HTTP/1.1\r\n",
        "HTTP/1.1\r\n",
        "HTTP/\n",
        "foo HTTP/\r\n",
        "foo xHTTP/\r\n",
        "foo HTTP\r\n",
        "foo http/1.1\r\n",
        "foo HTTP/ bar\r\n",
        "foo HTTP/1.1 \r\n",
        "foo HTTP/1.1\0 bar\r\n",
        "noreply HTTP/1.1\r\n",
        "get / HTTP/1.0\r\n",
        "gett HTTP/1.0\r\nsett HTTP/1.0\r\nadds HTTP/1.0\r\ncass HTTP/1.0\r\n",
        "increment HTTP/1.0\r\ndel HTTP/1.0\r\ntouched HTTP/1.0\r\n",
        "set HTTP/1.0\r\nadd HTTP/1.0\r\ncas HTTP/1.0\r\nincr HTTP/1.0\r\ndelete a HTTP/1.0\r\ntouch HTTP/1.0\r\n",
        "mq HTTP/1.0\r\nmn HTTP/1.0\r\nx HTTP/1.0\r\nm HTTP/1.0\r\n",
        "mqq HTTP/1.0\r\n",
        "replace HTTP/1.0\r\nprepend HTTP/1.0\r\nbget HTTP/1.0\r\nflush_all 0 0 HTTP/1.0\r\n",
        "verbosity 0 0 HTTP/1.0\r\nlru HTTP/1.0\r\nextstore HTTP/1.0\r\nversion HTTP/1.0\r\n",
        "watch HTTP/1.0\r\n",
        "lru_crawler HTTP/1.0\r\nstats HTTP/1.0\r\nslabs HTTP/1.0\r\nshutdown HTTP/1.0\r\n",
    ]);
    // Of many tokens those behind the 23rd are not looked at.
    for before in 20..26 {
        cases.push(format!("foo{} HTTP/1.0\r\n", " x".repeat(before)).into_bytes());
        cases.push(format!("foo{} HTTP/1.0{}\r\n", " x".repeat(before), " x".repeat(20)).into_bytes());
    }
    cases
}

/// What memcached takes only with its maintainer thread.
pub fn lru() -> Vec<Vec<u8>> {
    all([
        "lru\r\nlru foo\r\nlru mode\r\nlru mode flat\r\nlru mode segmented\r\nlru mode x\r\nlru temp_ttl 5\r\nlru temp_ttl -1\r\nlru temp_ttl x\r\n",
        "lru temp_ttl\r\nlru tune 10 25 0.1 2.0\r\nlru tune 10 25\r\nlru tune 50 50 0.1 2.0\r\nlru tune 10 25 0 1\r\nlru tune x 25 0.1 2.0\r\n",
    ])
}

/// Statistics, settings, the end.
fn administration() -> Vec<Vec<u8>> {
    all([
        "version\r\nversion 1 2 3\r\nversions\r\nverbosity\r\nverbosity 1 2\r\nverbosity 0\r\nverbosity x\r\nverbosity 0 0 0\r\n",
        "stats foo\r\nstats foo bar\r\nstats reset\r\nstats reset x\r\nstats sizes\r\nstats detail\r\nstats detail x\r\n",
        "stats detail on x\r\nstats detail off\r\nstats cachedump\r\nstats cachedump 1\r\nstats cachedump x y\r\nstats cachedump 64 0\r\n",
        "stats cachedump 200 1\r\nstats cachedump 5 1\r\nstat\r\nstatss\r\n",
        "slabs\r\nslabs foo\r\nslabs reassign\r\nslabs reassign x y\r\nslabs automove\r\nslabs automove 0\r\nslabs automove 1\r\nslabs automove 2\r\n",
        "slabs automove 3\r\nslabs automove x\r\nslabs automove ratio\r\nslabs automove ratio 0.5\r\nslabs automove ratio x\r\n",
        "lru_crawler\r\nlru_crawler foo\r\nlru_crawler tocrawl 10\r\nlru_crawler tocrawl x\r\nlru_crawler tocrawl 0\r\nlru_crawler sleep 100\r\n",
        "lru_crawler sleep 1000000\r\nlru_crawler sleep 1000001\r\nlru_crawler sleep x\r\nlru_crawler sleep 100\r\nlru_crawler crawl\r\n",
        "lru_crawler mgdump all\r\nlru_crawler foo bar\r\n",
        "cache_memlimit\r\ncache_memlimit x\r\ncache_memlimit 1\r\ncache_memlimit 7\r\ncache_memlimit 64\r\ncache_memlimit 1000000001\r\n",
        "cache_memlimit 64 noreply\r\ncache_memlimit 1 noreply\r\ncache_memlimit 64 64 64\r\ncachememlimit\r\n",
        "shutdown\r\nshutdown graceful\r\nshutdown x\r\nmisbehave\r\ndebugtime p\r\nrefresh_certs\r\nextstore\r\nextstore a\r\nextstore a b\r\n",
        "watch foo\r\n",
        "watch fetchers foo\r\n",
        "watch noreply\r\n",
        "watch fetchers\r\n",
        "quit\r\nversion\r\n",
        "quit 1 2\r\nversion\r\n",
        "version\r\nquit\r\n",
        "quitt\r\n",
    ])
}

/// `stats sizes`, which tells of what is stored while it is on. Apart from the others: turning it on takes a cas in memcached.
pub fn sizes() -> Vec<Vec<u8>> {
    all([
        "stats sizes\r\nstats sizes_enable\r\nstats sizes_enable x\r\nstats sizes\r\nstats sizes x\r\n",
        "stats sizes_disable x\r\nstats sizes\r\nstats sizes_disable\r\nstats sizes_x\r\nstats sizes_enable noreply\r\n",
    ])
}

/// `lru_crawler`: classes that are none.
fn crawling() -> Vec<Vec<u8>> {
    let classes = |command: &str, classes: &[&str]| -> String {
        classes.iter().map(|class| format!("lru_crawler {command} {class}\r\n")).collect()
    };
    // What memcached would begin to crawl is left out: it may be at it already, by itself.
    let none =
        ["", "-1", "0", "64", "65", "255", "256", "x", "1x", "1,64", "1,x", "0,1", "1,-1", "all,1", "1,all", "ALL"];
    let wide = ["4294967296", "4294967360", "-4294967295", "1 2", "1 noreply", "noreply"];
    // memcached refuses it behind other commands, unless it is off.
    let dumps = none[1..].iter().map(|class| format!("lru_crawler metadump {class}\r\n").into_bytes());
    let mut cases = all([
        classes("crawl", &none) + &classes("crawl", &wide),
        "lru_crawler enable\r\nlru_crawler enable x\r\nlru_crawler disable x\r\nlru_crawler disable noreply\r\n"
            .to_owned(),
        "lru_crawler tocrawl -1\r\nlru_crawler sleep -1\r\nlru_crawler tocrawl 0\r\nlru_crawler sleep 100\r\n"
            .to_owned(),
    ]);
    cases.extend(dumps);
    cases
}

/// `lru_crawler` turned off, and on again. memcached's thread takes a moment for each, so they are sent one by one.
pub fn crawler_off() -> Vec<Vec<u8>> {
    let any = ["1", "all", "hash", ",", "0", "70", "x", ""];
    let each = |command: &str| any.iter().map(|class| format!("lru_crawler {command} {class}\r\n")).collect::<String>();
    all([
        "lru_crawler disable\r\n".to_owned(),
        "lru_crawler disable\r\n".to_owned(),
        each("crawl") + &each("metadump"),
        "lru_crawler tocrawl 5\r\nlru_crawler sleep 100\r\n".to_owned(),
        "lru_crawler enable\r\n".to_owned(),
        "lru_crawler enable\r\nlru_crawler crawl 0\r\n".to_owned(),
        "lru_crawler metadump 0\r\n".to_owned(),
    ])
}

/// `slabs reassign`, between each two of many classes. While these tests run none of memcached's has a page to spare.
fn reassigning() -> Vec<Vec<u8>> {
    let classes = ["-2", "-1", "-0", "0", "+1", "1", "2", "39", "40", "63", "64", "90", "255", "256", "4294967297"];
    let to = |from: &str| -> String { classes.iter().map(|to| format!("slabs reassign {from} {to}\r\n")).collect() };
    let mut cases: Vec<Vec<u8>> = classes.iter().map(|from| to(from).into_bytes()).collect();
    cases.extend(all([
        "slabs reassign 1\r\nslabs reassign 1 1 1\r\nslabs reassign 1 x\r\nslabs reassign x 1\r\nslabs reassign 1 1 noreply\r\n",
        "slabs reassign all 1\r\nslabs reassign 1 all\r\nslabs reassign 2147483648 1\r\nslabs reassign 1 2147483648\r\n",
    ]));
    cases
}

/// `extstore`, of which memcached takes the settings also where there is none.
fn extstore() -> Vec<Vec<u8>> {
    let names = [
        "item_size",
        "item_age",
        "low_ttl",
        "recache_rate",
        "compact_under",
        "drop_under",
        "max_sleep",
        "max_frag",
        "drop_unread",
        "free_memchunks",
        "Item_size",
        "io_depth",
    ];
    let numbers = [
        "0",
        "1",
        "-1",
        "+1",
        "63",
        "64",
        "255",
        "256",
        "512",
        "0.5",
        "4294967296",
        "4294967297",
        "18446744073709551615",
    ];
    let others = ["", "x", "1x", "1.x", "all", "noreply", "1 noreply", "x noreply", "18446744073709551616 "];
    let pairs =
        ["0 0", "1 1", "1 -1", "63 1", "64 1", "256 1", "1 x", "x 1", "1 1 1", "1 1 noreply", "-1 1", "4294967296 1"];
    let of = |name: &str| -> Vec<u8> {
        let values = [&numbers[..], &others, &pairs].concat();
        values.iter().map(|value| format!("extstore {name} {value}\r\n")).collect::<String>().into_bytes()
    };
    let mut cases: Vec<Vec<u8>> = names.map(of).to_vec();
    cases.push(b"extstore noreply\r\nextstore noreply noreply\r\nextstore x y z noreply\r\nextstore  \r\n".to_vec());
    cases
}

/// Statistics by prefix: what counts, for which of them. memcached tells more than one prefix in no order.
pub fn prefixes() -> Vec<Vec<u8>> {
    let mut cases = all([
        "stats detail on\r\nset p:a 0 0 1\r\nx\r\nget p:a p:b none\r\ngats 0 p:a p:b\r\nadd p:a 0 0 1\r\nx\r\nstats detail dump\r\n",
        "cas p:a 0 0 1 1\r\nx\r\nappend p:a 0 0 1 noreply\r\nx\r\nset p:a 0 0 x\r\nset p:a x 0 1\r\nstats detail dump\r\n",
        "delete p:a\r\ndelete p:a\r\ndelete p:b 0 noreply\r\ndelete p:a 1\r\ntouch p:a 0\r\nincr p:a 1\r\nstats detail dump\r\n",
        "ms p:a 1\r\nx\r\nmg p:a v\r\nma p:a\r\nmd p:a\r\nme p:a\r\nstats detail dump\r\n",
        "stats reset\r\nstats detail dump\r\nset q:a 0 0 1\r\nx\r\nstats detail dump\r\nstats detail off\r\nget q:a\r\nstats detail dump\r\n",
    ]);
    let too_large = format!("set p:a 0 0 1100000\r\n{}\r\n", "x".repeat(1_100_000));
    cases.insert(1, format!("set p:a 0 0 1\r\nxyz\r\n{too_large}stats detail dump\r\n").into_bytes());
    cases
}

/// Keys, and lines, of all lengths.
fn keys() -> Vec<Vec<u8>> {
    let mut cases = all([
        format!("set {0} 0 0 1\r\nx\r\nget {0}\r\ngets {0}\r\n", key(250)),
        format!("set {} 0 0 1\r\nx\r\n", key(251)),
        format!("set {} 0 0 1 noreply\r\nx\r\n", key(251)),
        format!("get {}\r\n", key(251)),
        format!("get a {} b\r\n", key(251)),
        format!("get {}\r\n", [&"a ".repeat(60), &key(251)[..]].concat()),
        format!("gat 0 {}\r\n", key(251)),
        format!("incr {} 1\r\n", key(251)),
        format!("touch {} 1\r\ndelete {0}\r\ndelete {0} noreply\r\n", key(251)),
        format!("get {}\r\n", "a b ".repeat(30)),
        format!("gets {}\r\n", "a ".repeat(400)),
        format!("gat 0 {}\r\n", "a b ".repeat(30)),
        format!("get{}a\r\n", " ".repeat(200)),
        format!("{}get a\r\n", " ".repeat(200)),
        format!("set{}\r\n", " a".repeat(40)),
        format!("{}\r\n", "x".repeat(2047)),
        format!("{} y\r\n", "x ".repeat(500)),
        "x".repeat(2049),
        format!("set a {}", "0".repeat(2049)),
        format!("{}get a", " ".repeat(2049)),
    ]);
    cases.push([&b"get "[..], &b"abcdefg ".repeat(4000), b"\r\nversion\r\n"].concat());
    cases.push(b"\x81\x00\x00\r\nget a\r\n".to_vec());
    cases.push(b"\xff\xfe\r\nget \xff\xfe\r\nset \xff\xfe 0 0 1\r\n\x80\r\nget \xff\xfe\r\n".to_vec());
    cases
}

/// The meta protocol.
pub fn meta() -> Vec<Vec<u8>> {
    let mut cases = all([
        "mn\r\nmn a\r\n mn \r\n",
        "ms a 1\r\nx\r\nmg a\r\nmg a v\r\nmg a v k c f s t h l q O77\r\nmg b\r\nmg b q\r\nmg b q k O1\r\nmg b k O1\r\nmg a q\r\n",
        "ms a 1 F77 T0 c k O9\r\nx\r\nmg a f c k\r\nms a 1 q\r\ny\r\nms a 1 q c k O1\r\nz\r\nmg a v\r\n",
        "ms a 2 ME\r\nxx\r\nms e 2 ME k c\r\nxx\r\nms a 2 MA c\r\nyy\r\nms a 2 MP c\r\nzz\r\nmg a v c\r\nms a 1 MR c\r\nr\r\nms no 1 MR k\r\nr\r\n",
        "ms no 1 MA k\r\nr\r\nms no 1 MP k q\r\nr\r\nms a 1 MS c\r\ns\r\nms a 1 Me\r\ns\r\nms a 1 MX\r\ns\r\nms a 1 M\r\ns\r\nms a 1 MEE\r\ns\r\n",
        "md a\r\nmd a\r\nmd a q\r\nmd e q\r\nmd e k O5\r\nms a 1\r\nx\r\nmd a q k O5\r\nmd a C1\r\nms a 1 c\r\nx\r\nmd a C1 k\r\nmd a C0\r\n",
        "ms a 1 c\r\nx\r\nms a 1 C1 c\r\nx\r\nms a 1 C0 c k\r\nx\r\nms zz 1 C1 c\r\nx\r\nms zz 1 C0 c\r\nx\r\nms zz 1 ME C5 c\r\nx\r\nms zz 1 MR C5 c\r\nx\r\n",
        "ms a 1 C1 I c\r\nz\r\nmg a v c t\r\nmg a v\r\nmg a\r\nms a 1 C1 I k\r\nz\r\nmg a\r\nms a 1\r\nx\r\nmg a\r\nms a 1 I\r\nx\r\nms a 1 C999999 I\r\nx\r\n",
        "ms a 1 MA C1 c\r\nx\r\nms a 1 MA C1 I c\r\nx\r\nms a 1 MR C1 I c\r\nx\r\nmg a v c\r\n",
        "md a I\r\nmg a c\r\nmg a c\r\nmd a I T30\r\nmg a t\r\nmg a t\r\nmd a I q\r\nmd a C1 I\r\nmg a c v\r\nms a 1\r\nx\r\nmg a v\r\n",
        "md st I\r\nms st 1 T60\r\ny\r\nmd st I T-1\r\nmg st\r\n",
        "mg viv N30 t c v s f h l k O123\r\nmg viv N30 t c v s f h l\r\nme viv\r\nms viv 1 T10 c\r\nx\r\nmg viv t c v h l\r\nmg viv h\r\n",
        "mg viv R20 t\r\nmg viv R20\r\nmg viv R20 u\r\nmg viv R5\r\nmg viv2 t N30\r\nmg viv2 t\r\nmg viv3 N0 t v\r\nmg viv3\r\nmg viv4 N-1\r\nmg viv4\r\n",
        "mg viv5 q N30\r\nmg viv5 q\r\nmg viv6 N30 T60 t\r\nmg viv7 T60 N30 t\r\nmg viv7 T10 t\r\nmg viv7 t T20\r\nmg viv7 t\r\nmg viv7 T0 t\r\n",
        "ms h 1\r\nx\r\nmg h h u\r\nmg h h u\r\nmg h h\r\nmg h h\r\nme h\r\nget h\r\nms h 1\r\nx\r\nget h\r\nmg h h\r\nincr h 1\r\n",
        "set hn 0 0 2\r\n10\r\nmg hn h u\r\n",
        "incr hn 1\r\nmg hn h u\r\n",
        "touch hn 0\r\nincr hn 1\r\nmg hn h u\r\n",
        "incr hn 100\r\nmg hn h u\r\n",
        "ma cc\r\nma cc N0\r\nma cc N0 J5 v c t\r\nma cc D10 MD v\r\nma cc D10 v\r\nma cc M+ v T10 t\r\nma cc v\r\nma cc M- v t O123 k\r\n",
        "ma cc C1 v\r\nma cc C0 v c\r\nma cc Mx\r\nma cc MDD\r\nma cc Dx\r\nma cc D-1\r\nma cc MI\r\nma nn k O1\r\nma cc q\r\nma nn q\r\nma cc q v\r\n",
        "ma vv N60 J18446744073709551615 v t k O1\r\nma vv v c\r\nma vv D18446744073709551615 v\r\nma q1 N0 q v\r\nma q1 N0 q v\r\nma t1 N30 t T10\r\nma t1 t\r\n",
        "ms nan 1\r\nx\r\nma nan\r\nma nan q\r\nma nan N0\r\nms nan 0\r\n\r\nma nan v\r\nma nan M\r\nma nan Jx\r\nma b b\r\nma Zm9v b N0 v k\r\nma foo v k\r\n",
        "me\r\nme nothing\r\nms a 1\r\nx\r\nme a\r\nme a b c\r\nme Zm9v b\r\nme Zm9 b\r\nme a x\r\nmg a\r\nmg a\r\nme a\r\n",
        "ms Zm9v 1 b k\r\nx\r\nmg Zm9v b k v\r\nmg foo k v\r\nget foo\r\nme foo\r\nme Zm9v b\r\nms Zm9v 1 b MA k\r\ny\r\nmg Zm9v b k v\r\nmg foo k v\r\n",
        "ms Zm9v 1 b\r\n7\r\nincr foo 1\r\nmg Zm9v b k v\r\nincr foo 10\r\nmg Zm9v b k v\r\nmg Zm9x b k\r\nmd Zm9v b k\r\nmd Zm9v b k\r\nmg Zm8= b N0 k\r\nmg Zm8= b k\r\n",
        "mg Zm9 k b\r\nmg Zm9= b\r\nmg Z*m9v b k\r\nmg ==== b k\r\nmg Z=== b\r\nmg Zg== b k\r\nms x 1 b\r\ny\r\nmd x b\r\nma x b\r\nmg Zg==Zm9v b k\r\n",
        "mg\r\nmg \r\nms\r\nms a\r\nms a x\r\nms a -1\r\nms a 1x\r\nms a S1\r\nms a 2147483647\r\nms a 4294967297\r\nx\r\nma\r\nmd\r\nmgg a\r\nmz a\r\n",
        "mg a a\r\nmg a v v\r\nmg a S\r\nmg a E1\r\nmg a Tx\r\nmg a T\r\nmg a Nx\r\nmg a Rx\r\nmg a Fx\r\nmg a Cx\r\nmg a C\r\nmg a O\r\nmg zz O\r\nmg a k k\r\n",
        "mg a P L\r\nmg a Ppath/ Lx v\r\nmg a I\r\nmg a x\r\nmg a E\r\nmg a \x7fa\r\nmg a vv\r\nmg a v1 k2 c3 t4\r\n",
        "ms a 1 S2\r\nx\r\nms a 1 v v\r\nx\r\nms a 1 Fx\r\nx\r\nms a 1 Tx\r\nx\r\nms a 1 Cx\r\nx\r\nms a 1 F1 F2\r\nx\r\nms a 1 x\r\ny\r\nms a 1 Tx Fx\r\nx\r\nms a 1 Fx Tx\r\nx\r\n",
        "ms a 1 T-1\r\nx\r\nmg a\r\nms a 1 T2592001\r\nx\r\nmg a\r\nms a 2\r\nabc\r\nms a 2 q\r\nabc\r\nms a 1 Dx Jx\r\nx\r\nms a 0\r\n\r\nmg a v\r\nms a 01\r\nx\r\n",
        "md a z\r\nmd a C\r\nmd a Cx\r\nmd a q q\r\nmd a v\r\nma a z\r\nma a q q\r\nmd a T5\r\nmd a F5\r\n",
        "mg a\0b\r\nms a\0 1\r\nms a 1\0\r\nx\r\n",
        "mg a O123456789012345678901234567890\r\nmg a O1234567890123456789012345678901\r\nmg a O12345678901234567890123456789012\r\n",
        "mg no O12345678901234567890123456789012\r\nmg no q O12345678901234567890123456789012\r\nmg no2 N0 O12345678901234567890123456789012\r\nmg no2\r\n",
        "ms a 1 O12345678901234567890123456789012\r\nx\r\nms a 1 O1234567890123456789012345678901 k\r\nx\r\nms a 1 MX O12345678901234567890123456789012\r\nx\r\n",
        "md a O12345678901234567890123456789012\r\nma a O12345678901234567890123456789012\r\nmd a O1234567890123456789012345678901\r\n",
        "ms n 1\r\n5\r\nma n v O12345678901234567890123456789012\r\nma n v\r\nma no3 O12345678901234567890123456789012\r\n",
        "ms n 1 T60\r\n5\r\nma n T30 O12345678901234567890123456789012\r\nmg n t\r\n",
        "ma n O12345678901234567890123456789012 T40\r\nma n T50 T40\r\nmg n t\r\n",
        "mg a k s c t f h l v q u O1 P L b\r\n",
        "mg a 1 2 3 4 5 6 7 8 9 a b c d e f g h\r\nmg a c c c c c c c c c c c c c c c c c c c c\r\nmd a c c c c c c c c c c c c c c c c c c c c\r\n",
        "ma a c c c c c c c c c c c c c c c c c c c c\r\nms a 1 c c c c c c c c c c c c c c c c c c c c\r\nx\r\nms a 1 1 2 3 4 5 6 7 8 9 a b c d e f g\r\nx\r\n",
    ]);
    cases.extend(all([
        format!("mg {}\r\nms {0} 1\r\nx\r\nmd {0}\r\nma {0}\r\nme {0}\r\n", key(251)),
        format!("ms {0} 1\r\nx\r\nmg {0} k v\r\nme {0}\r\nmd {0} k\r\n", key(250)),
        format!("ms {0} 1 b\r\nx\r\nmg {0} b k v\r\nme {0} b\r\nmd {0} b k\r\n", "A".repeat(248)),
        format!("mg {} b\r\n", "A".repeat(252)),
    ]));
    cases.push(b"mg a \xff\r\nmg \xff\r\nms \xfe 1 k\r\nx\r\nmg \xfe k\r\n".to_vec());
    cases
}

/// Gets of more than is held of a line, which are answered in parts: keys of every length around where a part ends.
pub fn long_gets() -> Vec<Vec<u8>> {
    const PART_BYTES: usize = 1 << 20;
    let key = |number: usize, bytes: usize| format!("{number:0bytes$}");
    let set: Vec<u8> =
        (0..4).flat_map(|at| format!("set {} {at} 0 1 noreply\r\n{at}\r\n", key(at, 250)).into_bytes()).collect();
    let mut cases = Vec::new();
    for (name, blanks, end) in [("get", 1, "\r\n"), ("gets", 2, "\n"), ("get", 77, " \r\n"), (" gets", 249, "  \n")] {
        let mut line = format!("{name}{}", " ".repeat(blanks));
        while line.len() < 5 * PART_BYTES / 2 {
            line += &format!("{} ", key(line.len() % 29, 250));
        }
        cases.push([&set[..], line.as_bytes(), key(1, 250).as_bytes(), end.as_bytes()].concat());
        // A key that is too long in the first part, a zero byte in a later one, a hundred thousand keys.
        cases.push([&set[..], name.as_bytes(), b" ", &[b'x'; 251], b" k", &line.as_bytes()[5..], b"\r\n"].concat());
        cases.push([&set[..], line.as_bytes(), b"\0", &line.as_bytes()[5..], end.as_bytes()].concat());
        let many: String = (0..100_000).map(|at| format!(" key{at:07}")).collect();
        cases.push([b"set key0099999 1 0 1\r\nx\r\n", name.as_bytes(), many.as_bytes(), b"\r\n"].concat());
    }
    cases.push([b"get", &vec![b' '; 2 * PART_BYTES][..], b"\r\n"].concat());
    cases
}

/// Values around every border: of one piece, of a chunk, of an item.
pub fn lengths() -> Vec<Vec<u8>> {
    let mut cases = Vec::new();
    let value = |bytes: usize| -> Vec<u8> { (0..bytes).map(|at| b'a' + (at % 23) as u8).collect() };
    let set = |line: String, bytes: usize| [line.as_bytes(), &value(bytes), b"\r\n"].concat();
    for bytes in [1, 100, 4096, 16_384, 65_535, 65_536, 65_537, 262_143, 262_144, 262_145, 600_000] {
        let mut case = set(format!("set long 7 0 {bytes}\r\n"), bytes);
        case.extend_from_slice(b"gets long\r\nmg long s v c\r\n");
        case.extend(set(format!("ms long {bytes} c k O1\r\n"), bytes));
        case.extend_from_slice(b"get long other\r\nincr long 1\r\n");
        cases.push(case);
        // The line's end is missing.
        let mut case = set(format!("set long 7 0 {bytes}\r\n"), bytes + 2);
        case.extend_from_slice(b"get long\r\n");
        cases.push(case);
        let mut case = set(format!("add long2 0 0 {bytes} noreply\r\n"), bytes);
        case.extend(set(format!("cas long2 0 0 {bytes} 1\r\n"), bytes));
        case.extend(set(format!("append long2 0 0 {bytes}\r\n"), bytes));
        case.extend_from_slice(b"gets long2\r\nprepend long2 0 0 3\r\nxyz\r\nget long2\r\ndelete long2\r\n");
        cases.push(case);
    }
    // Joined values that pass a border, and the item's limit.
    let mut case = set("set join 3 0 65530\r\n".into(), 65_530);
    for piece in [6, 1, 70_000, 200_000, 262_144, 400_000, 200_000] {
        case.extend(set(format!("append join 0 0 {piece}\r\n"), piece));
        case.extend(set(format!("prepend join 0 0 {piece}\r\n"), piece));
        case.extend_from_slice(b"gets join\r\n");
    }
    cases.push(case);
    // What is longer than an item may be.
    for (flags, overhead) in [(0, 60), (1, 64)] {
        for off in [0, 1] {
            let bytes = (1 << 20) - overhead + off;
            let mut case = b"set x 0 0 1\r\ny\r\n".to_vec();
            case.extend(set(format!("set x {flags} 0 {bytes}\r\n"), bytes));
            case.extend_from_slice(b"get x\r\n");
            cases.push(case);
        }
    }
    for (line, key) in [
        ("set x 0 0 2000000", "set x 0 0 1\r\ny\r\n"),
        ("set x 0 0 2000000 noreply", "set x 0 0 1\r\ny\r\n"),
        ("add x 0 0 2000000", "set x 0 0 1\r\ny\r\n"),
        ("append x 0 0 2000000", "set x 0 0 1\r\ny\r\n"),
        ("cas x 0 0 2000000 1", "set x 0 0 1\r\ny\r\n"),
        ("replace x 0 0 2000000 noreply", "set x 0 0 1\r\ny\r\n"),
        ("ms x 2000000", "set x 0 0 1\r\ny\r\n"),
        ("ms x 2000000 q ME", "set x 0 0 1\r\ny\r\n"),
        ("ms x 2000000 zz", "set x 0 0 1\r\ny\r\n"),
    ] {
        let mut case = key.as_bytes().to_vec();
        case.extend(set(format!("{line}\r\n"), 2_000_000));
        case.extend_from_slice(b"get x\r\nversion\r\n");
        cases.push(case);
    }
    cases
}
