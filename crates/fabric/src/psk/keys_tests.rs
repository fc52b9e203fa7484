//! Known answers, computed apart from this code with Python's hashlib and hmac:
//!
//! ```text
//! prk  = hmac(zeroes, key);  okm = hmac(prk, info + b"\x01")
//! info = length:be16 + len(label):u8 + label + len(context):u8 + context        as RFC 8446 §7.1 says
//! info = length:le16 + label + context                                          as nvme-cli did up to 2.13
//! ```
//! Keys are the bytes 1, 2, 3, ... The first of each quadruple is version 0's key, then version 1's digest and key.

use super::*;

const KEY_32: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH";
const KEY_48: &str = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wyg3Bcw==";

struct Answer {
    transform: &'static str,
    key: &'static str,
    derivation: Derivation,
    version_0: &'static str,
    digest: &'static str,
    version_1: &'static str,
}

const ANSWERS: [Answer; 8] = [
    Answer {
        transform: "00",
        key: KEY_32,
        derivation: Derivation::Standard,
        version_0: "d6132fe0153d2e44d7bf8e89159f24cc3c950f038f59613bc1577fddf3674e3e",
        digest: "nvBm6bxpDOfyYd89HbGDvPOCZabB8BlRVWGM40meDKQ=",
        version_1: "2fc4790b6010d96cf3afe0ea1aeb44638f54cb8f3c7748a0ed8e861afe2cf90c",
    },
    Answer {
        transform: "00",
        key: KEY_32,
        derivation: Derivation::Legacy,
        version_0: "a6238b6a031456e1fe9505d178072866029a6418dd4a6d196ab8e8210133b57d",
        digest: "nvBm6bxpDOfyYd89HbGDvPOCZabB8BlRVWGM40meDKQ=",
        version_1: "286bc2f2a8bbd4d05738b0361ce7e50dc41d8b982743f5e8dd02bdb8cd0bd5e9",
    },
    Answer {
        transform: "00",
        key: KEY_48,
        derivation: Derivation::Standard,
        version_0: "91da565a9839a1e5dbdfa112fefa5c938f021e29679db7c250c996f5b0471286\
                    9bfd7faaa8e97f4fb9e4a20657bea115",
        digest: "Q+WeR+UF96Fa3CtMvdm2IlIHk/5AubbMrgcw1tKXM0vngOykSYGiaL2nukwPwRvV",
        version_1: "326b6092703b814193f71b6a3d8e0dc2f0190cf943c703f49419bdbf5f0aafce\
                    fe7cb0efd5eb7527d627c914e31e5eda",
    },
    Answer {
        transform: "00",
        key: KEY_48,
        derivation: Derivation::Legacy,
        version_0: "2ba9b454ea58cdfba206cd69610ddb7f20dd4b137dcdfcc4f00e1a4b6793bca7\
                    00e906e45fbff75584f29fe61099cd9f",
        digest: "Q+WeR+UF96Fa3CtMvdm2IlIHk/5AubbMrgcw1tKXM0vngOykSYGiaL2nukwPwRvV",
        version_1: "025d221d84f22473dd402994c9b70ec155bb258115631f33b2cd4177903161fa\
                    850bdf5dd2859f111b38f5432512e6c7",
    },
    Answer {
        transform: "01",
        key: KEY_32,
        derivation: Derivation::Standard,
        version_0: "ceb4a78c4e50295d597b78ff0910dba3000b3bad8e5986862fef2f4779f571b1",
        digest: "/Ws2uLViKF8I6iCX5rzOTw5VRyEDLYrAWnoZntozgUg=",
        version_1: "eb924e1c4a3c85717185f3efe5035bf35a231a518f2f37a8d5150140db5bf9e1",
    },
    Answer {
        transform: "01",
        key: KEY_32,
        derivation: Derivation::Legacy,
        version_0: "10356da4bc9a9b6e7f0b78724d1508d37ea0b92a5bb65a9d2375b7b45da1748a",
        digest: "4b20dTEvu3lRFNOpnQGX0q1T/NtFfMvOJ/IN2Bz2KXw=",
        version_1: "7331db75a1149478756cf57c54a682cc960fe2d0516a5dc6b6885319a055fbb5",
    },
    Answer {
        transform: "02",
        key: KEY_48,
        derivation: Derivation::Standard,
        version_0: "bd55abeafea96b0e83ced8d3efb53a1b290ac22e8168b3a6249fadc07f9ee9a2\
                    543454f6d6552f4badc5f79e38ea8a98",
        digest: "l087uEBdVyzCODfXZGZpC4iwSuCXAnL61xkr4uJqPzeBXCXVV6EEKVJoUCqnWwit",
        version_1: "15520f7707b421ce375f65c753fa16c10abf20085684c34af1af17968b10a245\
                    7939915c1a78e026f486f1cdcb7b1c5f",
    },
    Answer {
        transform: "02",
        key: KEY_48,
        derivation: Derivation::Legacy,
        version_0: "b1c822606ee68d7d9bd921332e432e2ffb295c5a9fdf513959a916d42bb0b0ed\
                    bf93716429688e919254caaa83a12c85",
        digest: "aGmW8ZqqIo/mduTfLsmnOxi3HzKnV/Ikj+3qm/1OPaZrH6ieAaARH/VOO4Tt3dw3",
        version_1: "faabac9e4ace074f9094f5fce42246caca36e798dbf7ac861cf0d469419647af\
                    eb4d8ac95d2c1782f886a1247218ae43",
    },
];

fn host() -> Nqn {
    "nqn.2026-01.org.example:host".parse().expect("a name")
}

fn subsystem() -> Nqn {
    "nqn.2026-01.org.example:sub".parse().expect("a name")
}

fn parse(text: &str) -> Result<ConfiguredPsk, PskError> {
    ConfiguredPsk::parse(&Secret::new(text.as_bytes().to_vec()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn keys_are_those_that_were_computed_apart() {
    for answer in ANSWERS {
        let configured = parse(&format!("NVMeTLSkey-1:{}:{}:", answer.transform, answer.key)).expect("a key");
        let code = configured.hash().code();
        let retained = configured.retain(&host(), answer.derivation).expect("retained");
        let zero = retained.tls_psk(IdentityVersion::Zero, &subsystem()).expect("a key");
        assert_eq!(hex(zero.key().expose()), answer.version_0);
        let names = "nqn.2026-01.org.example:host nqn.2026-01.org.example:sub";
        assert_eq!(zero.offered(), format!("NVMe0R{code} {names}").as_bytes());
        let one = retained.tls_psk(IdentityVersion::One, &subsystem()).expect("a key");
        assert_eq!(hex(one.key().expose()), answer.version_1);
        assert_eq!(one.offered(), format!("NVMe1R{code} {names} {}", answer.digest).as_bytes());
    }
}

#[test]
fn a_key_in_its_interchange_format_reads_as_it_was_written() {
    for (transform, hash) in [
        (None, PskHash::Sha256),
        (None, PskHash::Sha384),
        (Some(PskHash::Sha256), PskHash::Sha256),
        (Some(PskHash::Sha384), PskHash::Sha384),
    ] {
        let key = ConfiguredPsk::random(transform, hash).expect("random");
        let read = ConfiguredPsk::parse(&key.to_interchange()).expect("well formed");
        assert_eq!((read.transform(), read.hash()), (transform, hash));
        assert!(read.key == key.key);
    }
    // As nvme-cli prints it.
    assert!(parse("NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:").is_ok());
}

#[test]
fn a_key_that_is_damaged_is_refused_and_said_why() {
    let good = format!("NVMeTLSkey-1:01:{KEY_32}:");
    for cut in 0..good.len() {
        assert!(parse(&good[..cut]).is_err(), "{}", &good[..cut]);
    }
    let other = good.replace("AQIDBAUG", "AQIDBAUH");
    for (text, error) in [
        (format!("{good}x"), PskError::Form),
        (format!("NVMeTLSkey-2:01:{KEY_32}:"), PskError::Form),
        (format!("DHHC-1:01:{KEY_32}:"), PskError::Form),
        (format!("NVMeTLSkey-1:03:{KEY_32}:"), PskError::Hash("03".into())),
        (format!("NVMeTLSkey-1:02:{KEY_32}:"), PskError::Length(32)),
        (format!("NVMeTLSkey-1:01:{KEY_48}:"), PskError::Length(48)),
        ("NVMeTLSkey-1:00:AAAAAAAA:".to_owned(), PskError::Length(2)),
        ("NVMeTLSkey-1:00::".to_owned(), PskError::Length(0)),
        (format!("NVMeTLSkey-1:01: {KEY_32}:"), PskError::Form),
        (other, PskError::Checksum),
    ] {
        assert_eq!(parse(&text).map(|_| ()), Err(error), "{text}");
    }
}

#[test]
fn names_too_long_for_version_0_do_for_version_1() {
    let long: Nqn = format!("nqn.2026-01.org.example:{}", "h".repeat(180)).parse().expect("a name");
    let retained = parse(&format!("NVMeTLSkey-1:01:{KEY_32}:")).expect("a key");
    let retained = retained.retain(&long, Derivation::Standard).expect("retained");
    let zero = retained.tls_psk(IdentityVersion::Zero, &long);
    assert!(matches!(zero, Err(PskError::IdentityTooLong(_))));
    assert!(retained.tls_psk(IdentityVersion::One, &long).is_ok());
}

#[test]
fn keys_are_not_printed() {
    let key = parse(&format!("NVMeTLSkey-1:00:{KEY_32}:")).expect("a key");
    let retained = key.clone().retain(&host(), Derivation::Standard).expect("retained");
    let psk = retained.tls_psk(IdentityVersion::One, &subsystem()).expect("a key");
    for text in [format!("{key:?}"), format!("{retained:?}"), format!("{psk:?}")] {
        assert!(text.contains("Secret(32 bytes)") && !text.contains("1, 2, 3"), "{text}");
    }
}
