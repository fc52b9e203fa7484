//! `--port`, `--subsystem`, `--host`: where a target listens, what it offers, and to whom.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use fabric::auth::HostKeys;
use fabric::subsystem::{HostConfig, PortConfig, PortId, Profile, TlsPolicy};
use nvme::{AnaState, Nqn};

use super::host_tls::HostTls;
use crate::cli::TargetArgs;
use crate::spec::{once, pairs, parse_group, parse_nqn};

/// `--port ADDR[,id=N][,advertise=ADDR][,discovery=only][,tls=off|allowed|required][,ana=GROUP:STATE]…`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortSpec {
    /// Where to listen.
    pub address: SocketAddr,
    id: Option<PortId>,
    advertise: Option<SocketAddr>,
    discovery_only: bool,
    tls: TlsPolicy,
    ana: Vec<(u32, AnaState)>,
}

fn address(key: &str, text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{key} `{text}` is no address: write IP:PORT, such as 192.0.2.1:4420"))
}

/// What a target offers, by its name.
pub fn parse_profile(text: &str) -> Result<Profile, String> {
    match text {
        "full" => Ok(Profile::FULL),
        "minimal" => Ok(Profile::MINIMAL),
        _ => Err("give full or minimal".into()),
    }
}

fn parse_ana(text: &str) -> Result<(u32, AnaState), String> {
    let (group, state) = text.split_once(':').ok_or_else(|| format!("ana `{text}`: write GROUP:STATE"))?;
    Ok((parse_group(group)?, state.parse().map_err(|error: nvme::ana::AnaStateError| error.to_string())?))
}

impl FromStr for PortSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<PortSpec, String> {
        let (first, rest) = text.split_once(',').unwrap_or((text, ""));
        let address_here = address("port", first)?;
        let (mut id, mut advertise, mut discovery, mut tls, mut ana) = (None, None, None, None, Vec::new());
        for pair in pairs(rest, &["id", "advertise", "discovery", "tls", "ana"]).take_while(|_| !rest.is_empty()) {
            match pair? {
                ("id", value) => once(&mut id, "id", value.parse()?)?,
                ("advertise", value) => once(&mut advertise, "advertise", address("advertise", value)?)?,
                ("discovery", "only") => once(&mut discovery, "discovery", ())?,
                ("discovery", value) => return Err(format!("discovery `{value}`: may be `only`")),
                ("tls", value) => once(&mut tls, "tls", value.parse()?)?,
                (_, value) => {
                    let (group, state) = parse_ana(value)?;
                    if ana.iter().any(|(known, _)| *known == group) {
                        return Err(format!("ANA group {group} is given two states"));
                    }
                    ana.push((group, state));
                }
            }
        }
        Ok(PortSpec {
            address: address_here,
            id,
            advertise,
            discovery_only: discovery.is_some(),
            tls: tls.unwrap_or_default(),
            ana,
        })
    }
}

/// `--subsystem nqn=NQN[,serial=TEXT][,allow=any|listed][,port=ID]…`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubsystemSpec {
    nqn: Nqn,
    serial: Option<String>,
    any_host: Option<bool>,
    ports: Vec<PortId>,
}

impl FromStr for SubsystemSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<SubsystemSpec, String> {
        let (mut nqn, mut serial, mut any_host, mut ports) = (None, None, None, Vec::new());
        for pair in pairs(text, &["nqn", "serial", "allow", "port"]) {
            match pair? {
                ("nqn", value) => once(&mut nqn, "nqn", parse_nqn(value)?)?,
                ("serial", value) => once(&mut serial, "serial", value.to_string())?,
                ("allow", value @ ("any" | "listed")) => once(&mut any_host, "allow", value == "any")?,
                ("allow", value) => return Err(format!("allow `{value}`: must be any or listed")),
                (_, value) => ports.push(value.parse()?),
            }
        }
        let nqn = nqn.ok_or("say its name: nqn=NQN")?;
        if nqn.is_discovery() {
            return Err(format!("{nqn} is the discovery subsystem, which is always there; choose another name"));
        }
        Ok(SubsystemSpec { nqn, serial, any_host, ports })
    }
}

/// What `--host` may say.
const HOST_KEYS: [&str; 9] = [
    "nqn",
    "subsystem",
    "dhchap-key-file",
    "dhchap-ctrl-key-file",
    "tls-key-file",
    "tls-legacy",
    "tls",
    "concat",
    "manage",
];

/// `--host nqn=NQN[,subsystem=NQN]…[,dhchap-key-file=FILE[,dhchap-ctrl-key-file=FILE]][,tls-key-file=FILE[,tls-legacy=yes]]
/// [,tls=required][,concat=yes][,manage=yes|all]`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostSpec {
    nqn: Nqn,
    subsystems: Vec<Nqn>,
    key_file: Option<PathBuf>,
    controller_key_file: Option<PathBuf>,
    tls: HostTls,
    manage: bool,
    makes_for_all: bool,
}

impl FromStr for HostSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<HostSpec, String> {
        let (mut nqn, mut subsystems) = (None, Vec::new());
        let (mut key_file, mut controller_key_file, mut manage) = (None, None, None);
        let mut tls = HostTls::default();
        for pair in pairs(text, &HOST_KEYS) {
            match pair? {
                ("nqn", value) => once(&mut nqn, "nqn", parse_nqn(value)?)?,
                ("dhchap-key-file", value) => once(&mut key_file, "dhchap-key-file", value.into())?,
                ("dhchap-ctrl-key-file", value) => {
                    once(&mut controller_key_file, "dhchap-ctrl-key-file", value.into())?;
                }
                (key @ ("tls-key-file" | "tls-legacy" | "tls" | "concat"), value) => tls.take(key, value)?,
                ("manage", "yes") => once(&mut manage, "manage", false)?,
                ("manage", "all") => once(&mut manage, "manage", true)?,
                ("manage", value) => return Err(format!("manage `{value}`: may be `yes` or `all`")),
                (_, value) => subsystems.push(parse_nqn(value)?),
            }
        }
        let nqn = nqn.ok_or("say its name: nqn=NQN")?;
        if controller_key_file.is_some() && key_file.is_none() {
            return Err(
                "a dhchap-ctrl-key-file goes with a dhchap-key-file: the host is the first to show its key".into()
            );
        }
        let has_key = key_file.is_some();
        let tls = tls.checked(has_key)?;
        Ok(HostSpec {
            nqn,
            subsystems,
            key_file,
            controller_key_file,
            tls,
            manage: manage.is_some(),
            makes_for_all: manage == Some(true),
        })
    }
}

impl HostSpec {
    /// What the target knows of the host, its keys read from their files.
    fn config(&self) -> Result<HostConfig, String> {
        let failed = |error: String| format!("--host {}: {error}", self.nqn);
        let mut config = HostConfig { manage: self.manage, makes_for_all: self.makes_for_all, ..HostConfig::default() };
        if let Some(key_file) = &self.key_file {
            let keys = HostKeys::from_files(key_file, self.controller_key_file.as_deref());
            config.keys = Some(keys.map_err(|error| failed(error.to_string()))?);
        }
        self.tls.apply(&self.nqn, &mut config).map_err(failed)?;
        Ok(config)
    }
}

/// A port to make.
#[derive(PartialEq, Eq, Debug)]
pub struct PlannedPort {
    pub config: PortConfig,
    pub address: SocketAddr,
}

/// A subsystem to make.
#[derive(Debug)]
pub struct PlannedSubsystem {
    pub nqn: Nqn,
    pub serial: Option<String>,
    pub any_host: bool,
    pub hosts: Vec<(Nqn, HostConfig)>,
    pub ports: Vec<PortId>,
}

/// What the flags ask for, with every name looked up.
#[derive(Debug)]
pub struct Plan {
    pub ports: Vec<PlannedPort>,
    pub subsystems: Vec<PlannedSubsystem>,
    /// Subsystem and identifier of each namespace, in the order of the flags.
    pub namespaces: Vec<(Nqn, u32)>,
    /// States of ANA groups, in every subsystem.
    pub ana: Vec<(PortId, u32, AnaState)>,
}

impl Plan {
    /// Makes the plan; a sentence where the flags contradict each other.
    pub fn new(args: &TargetArgs) -> Result<Plan, String> {
        let (ports, ana) = plan_ports(args)?;
        let mut subsystems = plan_subsystems(args, &ports)?;
        add_hosts(args, &mut subsystems)?;
        let namespaces = place_namespaces(args, &subsystems)?;
        Ok(Plan { ports, subsystems, namespaces, ana })
    }
}

type Ports = (Vec<PlannedPort>, Vec<(PortId, u32, AnaState)>);

fn plan_ports(args: &TargetArgs) -> Result<Ports, String> {
    let one = || PortSpec {
        address: args.listen,
        id: None,
        advertise: args.advertise,
        discovery_only: false,
        tls: TlsPolicy::Off,
        ana: Vec::new(),
    };
    let mut specs = if args.ports.is_empty() { vec![one()] } else { args.ports.clone() };
    if let Some(address) = args.discovery {
        specs.push(PortSpec { address, advertise: None, discovery_only: true, ..one() });
    }
    let mut taken: Vec<PortId> = specs.iter().filter_map(|spec| spec.id).collect();
    let (mut ports, mut ana): Ports = (Vec::new(), Vec::new());
    for spec in specs {
        let id = match spec.id {
            Some(id) if ports.iter().any(|port: &PlannedPort| port.config.id == id) => {
                return Err(format!("--port: two ports have the id {id}"));
            }
            Some(id) => id,
            None => (1..=u16::MAX).map(PortId).find(|id| !taken.contains(id)).ok_or("--port: no id is free")?,
        };
        taken.push(id);
        ana.extend(spec.ana.iter().map(|&(group, state)| (id, group, state)));
        let config = PortConfig { id, advertise: spec.advertise, discovery_only: spec.discovery_only, tls: spec.tls };
        ports.push(PlannedPort { config, address: spec.address });
    }
    Ok((ports, ana))
}

fn plan_subsystems(args: &TargetArgs, ports: &[PlannedPort]) -> Result<Vec<PlannedSubsystem>, String> {
    let default = || {
        let nqn = parse_nqn(&args.nqn).map_err(|error| format!("--nqn: {error}"))?;
        Ok::<_, String>(vec![SubsystemSpec { nqn, serial: None, any_host: None, ports: Vec::new() }])
    };
    let specs = if args.subsystems.is_empty() { default()? } else { args.subsystems.clone() };
    let mut planned: Vec<PlannedSubsystem> = Vec::new();
    for SubsystemSpec { nqn, serial, any_host, ports: restricted } in specs {
        if planned.iter().any(|other| other.nqn == nqn) {
            return Err(format!("--subsystem: {nqn} is given twice"));
        }
        if let Some(missing) = restricted.iter().find(|id| !ports.iter().any(|port| port.config.id == **id)) {
            return Err(format!("--subsystem: {nqn} is to be at port {missing}, which no --port has as its id"));
        }
        // A list that would let in everybody else all the same is not what somebody who writes one means.
        let listed = args.hosts.iter().any(|host| host.subsystems.is_empty() || host.subsystems.contains(&nqn));
        let any_host = any_host.unwrap_or(!listed);
        planned.push(PlannedSubsystem { nqn, serial, any_host, hosts: Vec::new(), ports: restricted });
    }
    Ok(planned)
}

fn unknown(what: &str, nqn: &Nqn, subsystems: &[PlannedSubsystem]) -> String {
    let known: Vec<&str> = subsystems.iter().map(|subsystem| subsystem.nqn.as_str()).collect();
    format!("{what}: there is no subsystem {nqn}{}", crate::config::nearest(nqn.as_str(), &known))
}

/// A host without subsystems is one of all of them.
fn add_hosts(args: &TargetArgs, subsystems: &mut [PlannedSubsystem]) -> Result<(), String> {
    for host in &args.hosts {
        let HostSpec { nqn, subsystems: named, .. } = host;
        let config = host.config()?;
        if let Some(missing) = named.iter().find(|name| !subsystems.iter().any(|known| known.nqn == **name)) {
            return Err(unknown(&format!("--host {nqn}"), missing, subsystems));
        }
        for subsystem in subsystems.iter_mut().filter(|known| named.is_empty() || named.contains(&known.nqn)) {
            if subsystem.hosts.iter().any(|(known, _)| known == nqn) {
                return Err(format!("--host: {nqn} is given twice for {}", subsystem.nqn));
            }
            subsystem.hosts.push((nqn.clone(), config.clone()));
        }
    }
    Ok(())
}

/// Subsystem and identifier of each namespace: as it says, or the only subsystem and the lowest identifier that is free.
fn place_namespaces(args: &TargetArgs, subsystems: &[PlannedSubsystem]) -> Result<Vec<(Nqn, u32)>, String> {
    let mut of_subsystem: BTreeMap<&Nqn, Vec<u32>> = BTreeMap::new();
    let mut owners = Vec::new();
    for (number, spec) in (1..).zip(&args.namespaces) {
        let owner = match (&spec.subsystem, subsystems) {
            (Some(nqn), _) => subsystems.iter().find(|known| known.nqn == *nqn).map(|known| &known.nqn),
            (None, [only]) => Some(&only.nqn),
            (None, _) => return Err(format!("namespace {number}: say where it belongs by subsystem=NQN")),
        };
        let missing =
            || spec.subsystem.as_ref().map_or_else(String::new, |nqn| unknown("--namespace", nqn, subsystems));
        let owner = owner.ok_or_else(missing)?;
        let ids = of_subsystem.entry(owner).or_default();
        if let Some(nsid) = spec.nsid {
            if ids.contains(&nsid) {
                return Err(format!("--namespace: {owner} has two with nsid={nsid}"));
            }
            ids.push(nsid);
        }
        owners.push(owner);
    }
    let mut placed = Vec::new();
    for (spec, owner) in args.namespaces.iter().zip(owners) {
        let ids = of_subsystem.entry(owner).or_default();
        let nsid = spec.nsid.or_else(|| (1..).find(|nsid| !ids.contains(nsid))).unwrap_or(1);
        ids.push(nsid);
        placed.push((owner.clone(), nsid));
    }
    Ok(placed)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: TargetArgs,
    }

    const A: &str = "nqn.2026-01.example:a";
    const B: &str = "nqn.2026-01.example:b";
    const HOST: &str = "nqn.2026-01.example:host";

    /// The plan of a command line; every word is separated by a blank.
    fn plan(line: &str) -> Result<Plan, String> {
        let words = std::iter::once("target").chain(line.split(' ').filter(|word| !word.is_empty()));
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        Plan::new(&line.args)
    }

    fn refused(line: &str) -> String {
        plan(line).map(|_| ()).expect_err(line)
    }

    #[test]
    fn one_line_is_enough() {
        let plan = plan("--namespace memory=1M --namespace memory=1M --advertise 192.0.2.1:4420").expect("fine");
        let config =
            PortConfig { advertise: Some("192.0.2.1:4420".parse().expect("one")), ..PortConfig::new(PortId(1)) };
        assert_eq!(plan.ports, [PlannedPort { config, address: "127.0.0.1:4420".parse().expect("one") }]);
        let nqn = "nqn.2026-11.io.yagura:node";
        assert_eq!(plan.namespaces, [(nqn.parse().expect("an NQN"), 1), (nqn.parse().expect("an NQN"), 2)]);
        assert!(
            matches!(&plan.subsystems[..], [one] if one.nqn.as_str() == nqn && one.any_host && one.hosts.is_empty())
        );
    }

    #[test]
    fn ports_get_ids_and_states() {
        let line =
            "--port 127.0.0.1:0,id=2,ana=1:inaccessible,ana=3:non-optimized --port 127.0.0.1:1 --discovery 127.0.0.1:2";
        let plan = plan(line).expect("fine");
        let ids: Vec<_> = plan.ports.iter().map(|port| (port.config.id.0, port.config.discovery_only)).collect();
        assert_eq!(ids, [(2, false), (1, false), (3, true)]);
        let states = [(PortId(2), 1, AnaState::Inaccessible), (PortId(2), 3, AnaState::NonOptimized)];
        assert_eq!(plan.ana, states);
    }

    #[test]
    fn namespaces_go_where_they_say() {
        let line = format!(
            "--subsystem nqn={A} --subsystem nqn={B},serial=S,allow=listed --namespace memory=1M,subsystem={B} \
             --namespace memory=1M,subsystem={A},nsid=2 --namespace memory=1M,subsystem={B},nsid=1"
        );
        let plan = plan(&line).expect("fine");
        let placed: Vec<_> = plan.namespaces.iter().map(|(nqn, nsid)| (nqn.as_str(), *nsid)).collect();
        assert_eq!(placed, [(B, 2), (A, 2), (B, 1)], "identifiers that are asked for come first");
        assert_eq!(plan.subsystems[1].serial.as_deref(), Some("S"));
        assert!(plan.subsystems[0].any_host && !plan.subsystems[1].any_host);
    }

    #[test]
    fn a_subsystem_with_a_list_lets_in_no_other() {
        let two = format!("--subsystem nqn={A} --subsystem nqn={B} --host nqn={HOST},subsystem={B}");
        let who = |plan: Plan| plan.subsystems.iter().map(|one| (one.any_host, one.hosts.len())).collect::<Vec<_>>();
        assert_eq!(who(plan(&two).expect("fine")), [(true, 0), (false, 1)]);
        assert_eq!(who(plan(&format!("--host nqn={HOST}")).expect("fine")), [(false, 1)]);
        let open = format!("--subsystem nqn={A},allow=any --host nqn={HOST}");
        assert_eq!(who(plan(&open).expect("fine")), [(true, 1)]);
    }

    #[test]
    fn each_wrong_combination_is_named() {
        let cases = [
            ("--port x".to_string(), "port `x` is no address"),
            ("--port 127.0.0.1:1,id=0".into(), "port id `0`: must be a number from 1 to 65535"),
            ("--port 127.0.0.1:1,id=1,id=2".into(), "id is given twice"),
            ("--port 127.0.0.1:1,ana=1".into(), "write GROUP:STATE"),
            ("--port 127.0.0.1:1,ana=0:change".into(), "ANA group `0`: must be a number from 1 to 128"),
            ("--port 127.0.0.1:1,ana=1:good".into(), "`good` is no ANA state"),
            ("--port 127.0.0.1:1,ana=1:change,ana=1:optimized".into(), "ANA group 1 is given two states"),
            ("--port 127.0.0.1:1,discovery=yes".into(), "discovery `yes`: may be `only`"),
            ("--port 127.0.0.1:1,adress=1".into(), "unknown key `adress`"),
            ("--port 127.0.0.1:1,id=1 --port 127.0.0.1:2,id=1".into(), "two ports have the id 1"),
            ("--port 127.0.0.1:1 --listen 127.0.0.1:2".into(), "cannot be used with"),
            ("--subsystem serial=x".into(), "say its name: nqn=NQN"),
            (format!("--subsystem nqn={A},allow=some"), "allow `some`: must be any or listed"),
            (format!("--subsystem nqn={A} --subsystem nqn={A}"), "is given twice"),
            (format!("--subsystem nqn={A},port=2"), "at port 2, which no --port has as its id"),
            (format!("--subsystem nqn={A} --nqn {B}"), "cannot be used with"),
            (format!("--subsystem nqn={}", nvme::nqn::DISCOVERY), "is the discovery subsystem"),
            ("--nqn x".into(), "--nqn: \"x\" is no NQN"),
            ("--host subsystem=x".into(), "is no NQN"),
            (format!("--host nqn={HOST},subsystem={A}"), "there is no subsystem"),
            (format!("--host nqn={HOST} --host nqn={HOST}"), "is given twice"),
            (format!("--host nqn={HOST},dhchap-ctrl-key-file=x"), "goes with a dhchap-key-file"),
            (format!("--host nqn={HOST},dhchap-key-file=/no/key"), "/no/key: No such file"),
            (format!("--host nqn={HOST},dhchap-key-file=/dev/null"), "must be a regular file"),
            (format!("--host nqn={HOST},tls-key-file=/no/key"), "/no/key: No such file"),
            (format!("--host nqn={HOST},tls-legacy=yes"), "goes with a tls-key-file"),
            (format!("--host nqn={HOST},tls=off"), "may be `required` for a host"),
            ("--port 127.0.0.1:0,tls=yes".into(), "off, allowed or required"),
            (format!("--subsystem nqn={A} --namespace memory=1M,subsystem={B}"), "there is no subsystem"),
            (format!("--subsystem nqn={A} --subsystem nqn={B} --namespace memory=1M"), "say where it belongs"),
            ("--namespace memory=1M,nsid=1 --namespace memory=1M,nsid=1".into(), "has two with nsid=1"),
        ];
        for (line, expected) in cases {
            let error = refused(&line);
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
