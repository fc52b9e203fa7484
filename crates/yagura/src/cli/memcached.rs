//! What to say in place of memcached's flags that are not there: whoever brings a command line along is told what mends it.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Flags, as clap names what it does not know, and what is said of them.
const INSTEAD: [(&[&str], &str); 17] = [
    (
        &["-d", "--daemon"],
        "it stays in the foreground: run it under systemd or another supervisor, or put `&` behind it",
    ),
    (&["-P", "--pidfile"], "no file for its process id is written: run it under systemd, which knows it"),
    (&["-u", "--user"], "it stays the user that starts it: say User= in systemd's unit, or start it as that user"),
    (&["-r", "--enable-coredumps"], "say LimitCORE=infinity in systemd's unit, or `ulimit -c unlimited` before"),
    (&["-k", "--lock-memory"], "memory is not locked: turn swap off for it by MemorySwapMax=0 in systemd's unit"),
    (
        &["-o", "--extended"],
        "leave it away: its settings are not needed, idle_timeout=N is --idle-timeout N, ssl_chain_cert=FILE and \
         ssl_key=FILE are --tls-cert FILE and --tls-key FILE, ext_path=FILE:SIZE is --flash file=FILE,size=SIZE",
    ),
    (&["-Z", "--enable-ssl"], "say --tls-cert FILE and --tls-key FILE"),
    (&["-f", "--slab-growth-factor"], "leave it away: memory has no slabs"),
    (&["-n", "--slab-min-size"], "leave it away: memory has no slabs"),
    (&["-L", "--enable-largepages"], "leave it away: large pages are taken by themselves"),
    (&["-R", "--max-reqs-per-event"], "leave it away: no connection keeps others from their turn"),
    (&["-b", "--listen-backlog"], "leave it away: 4,096 connections may wait to be accepted"),
    (&["-C", "--disable-cas"], "leave it away: cas takes no memory that could be saved"),
    (&["-D"], "leave it away: the prefix of `stats detail` ends at `:`"),
    (&["-V", "--version", "-i", "--license"], "say `yagura --version`"),
    (&["-e", "--memory-file"], "say --flash file=FILE,size=SIZE, which keeps items over restarts"),
    (&["-N", "--napi_ids"], "leave it away: connections go round the threads"),
];

/// What to do where `cache serve` does not know a flag that memcached has.
pub fn instead_of_memcached(arguments: &[std::ffi::OsString], error: &clap::Error) -> Option<String> {
    let is_serve =
        arguments.get(1).is_some_and(|verb| verb == "cache") && arguments.get(2).is_some_and(|verb| verb == "serve");
    if !is_serve || error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let flag = flag.split('=').next().unwrap_or(flag);
    let (_, instead) = INSTEAD.iter().find(|(flags, _)| flags.contains(&flag))?;
    Some(format!("memcached's {flag} is not there: {instead}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(flags: &[&str]) -> Option<String> {
        let arguments: Vec<std::ffi::OsString> =
            ["yagura", "cache", "serve"].iter().chain(flags).map(Into::into).collect();
        let error = super::super::command().try_get_matches_from(&arguments).expect_err("wrong");
        instead_of_memcached(&arguments, &error)
    }

    /// A flag that came to be served has no place in the table any more.
    #[test]
    fn every_flag_of_the_table_is_unknown_and_told() {
        for flag in INSTEAD.iter().flat_map(|(flags, _)| *flags) {
            let told = told(&[flag]).unwrap_or_else(|| panic!("{flag} is told nothing of"));
            assert!(told.starts_with(&format!("memcached's {flag} is not there: ")), "{told}");
        }
    }

    #[test]
    fn values_and_letters_in_a_row_make_no_difference() {
        assert!(told(&["-vd"]).is_some_and(|told| told.contains("systemd")));
        assert!(told(&["-u", "nobody"]).is_some_and(|told| told.contains("User=")));
        assert!(told(&["-unobody"]).is_some_and(|told| told.contains("User=")));
        assert!(told(&["--user=nobody"]).is_some_and(|told| told.contains("User=")));
        assert!(told(&["-o", "idle_timeout=5"]).is_some_and(|told| told.contains("--idle-timeout N")));
        assert_eq!(told(&["--nonsense"]), None);
        assert_eq!(told(&["-m", "x"]), None);
    }
}
