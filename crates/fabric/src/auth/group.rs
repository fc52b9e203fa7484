//! The groups of RFC 7919 and the exchange of DH values over them (NVMe Base 2.0 §8.13.5.1).
//!
//! Invariants:
//! - A peer's value is used only if it lies strictly between 1 and p − 1: with 1 or p − 1 the shared secret would be known
//!   to everybody.
//! - What is hashed is the shared secret at the full length of the group, leading zero bytes included. Without them one
//!   exchange in 256 would fail, at the peers that keep them.

use openssl::bn::{BigNum, BigNumContext, MsbOption};
use tls::Secret;
use zeroize::Zeroize;

use super::CryptoError;
use super::suite::Group;

/// Bits of a private exponent. Derived: at least twice the strength of the largest group (RFC 7919 §5.2 wants 400 for it).
const EXPONENT_BITS: i32 = 512;

/// Our half of an exchange.
pub(super) struct Exchange {
    prime: BigNum,
    exponent: BigNum,
    public: Vec<u8>,
}

impl Exchange {
    /// Draws a private exponent; `None` for the null group.
    pub fn new(group: Group) -> Result<Option<Exchange>, CryptoError> {
        let Some(prime) = prime(group) else { return Ok(None) };
        let prime = BigNum::from_hex_str(prime)?;
        let mut exponent = BigNum::new_secure()?;
        exponent.rand(EXPONENT_BITS, MsbOption::ONE, false)?;
        Exchange::with(prime, exponent, group.bytes()).map(Some)
    }

    fn with(prime: BigNum, mut exponent: BigNum, bytes: usize) -> Result<Exchange, CryptoError> {
        // The time of the exponentiation must not tell the exponent.
        exponent.set_const_time();
        let mut value = BigNum::new()?;
        value.mod_exp(&*BigNum::from_u32(2)?, &exponent, &prime, &mut *BigNumContext::new()?)?;
        let public = value.to_vec_padded(bytes as i32)?;
        Ok(Exchange { prime, exponent, public })
    }

    /// The value for the peer, as long as the group.
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// The shared secret, as long as the group; `None` if the peer's value is none of the group.
    pub fn shared(&self, peer: &[u8]) -> Result<Option<Secret>, CryptoError> {
        if peer.len() > self.public.len() {
            return Ok(None);
        }
        let peer = BigNum::from_slice(peer)?;
        let one = BigNum::from_u32(1)?;
        let mut last = BigNum::new()?;
        last.checked_sub(&self.prime, &one)?;
        if peer <= one || peer >= last {
            return Ok(None);
        }
        let mut value = BigNum::new_secure()?;
        value.mod_exp(&peer, &self.exponent, &self.prime, &mut *BigNumContext::new_secure()?)?;
        let mut bytes = value.to_vec_padded(self.public.len() as i32)?;
        value.clear();
        let secret = Secret::new(std::mem::take(&mut bytes));
        bytes.zeroize();
        Ok(Some(secret))
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.exponent.clear();
    }
}

/// The safe prime of a group, in hexadecimal (RFC 7919 appendix A); the generator of each is 2.
fn prime(group: Group) -> Option<&'static str> {
    Some(match group {
        Group::Null => return None,
        Group::Ffdhe2048 => FFDHE2048,
        Group::Ffdhe3072 => FFDHE3072,
        Group::Ffdhe4096 => FFDHE4096,
        Group::Ffdhe6144 => FFDHE6144,
        Group::Ffdhe8192 => FFDHE8192,
    })
}

#[rustfmt::skip]
mod primes {
    pub const FFDHE2048: &str = concat!(
        "FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695A9E13641146433FBCC939DCE249B3EF9",
        "7D2FE363630C75D8F681B202AEC4617AD3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3B557135E7F57C935",
        "984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797ABC0AB182B324FB61D108A94BB2C8E3FB",
        "B96ADAB760D7F4681D4F42A3DE394DF4AE56EDE76372BB190B07A7C8EE0A6D709E02FCE1CDF7E2ECC03404CD28342F61",
        "9172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC2EC22005C58EF1837D1683B2C6F34A26C1B2EFFA",
        "886B423861285C97FFFFFFFFFFFFFFFF",
    );
    pub const FFDHE3072: &str = concat!(
        "FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695A9E13641146433FBCC939DCE249B3EF9",
        "7D2FE363630C75D8F681B202AEC4617AD3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3B557135E7F57C935",
        "984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797ABC0AB182B324FB61D108A94BB2C8E3FB",
        "B96ADAB760D7F4681D4F42A3DE394DF4AE56EDE76372BB190B07A7C8EE0A6D709E02FCE1CDF7E2ECC03404CD28342F61",
        "9172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC2EC22005C58EF1837D1683B2C6F34A26C1B2EFFA",
        "886B4238611FCFDCDE355B3B6519035BBC34F4DEF99C023861B46FC9D6E6C9077AD91D2691F7F7EE598CB0FAC186D91C",
        "AEFE130985139270B4130C93BC437944F4FD4452E2D74DD364F2E21E71F54BFF5CAE82AB9C9DF69EE86D2BC522363A0D",
        "ABC521979B0DEADA1DBF9A42D5C4484E0ABCD06BFA53DDEF3C1B20EE3FD59D7C25E41D2B66C62E37FFFFFFFFFFFFFFFF",
    );
    pub const FFDHE4096: &str = concat!(
        "FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695A9E13641146433FBCC939DCE249B3EF9",
        "7D2FE363630C75D8F681B202AEC4617AD3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3B557135E7F57C935",
        "984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797ABC0AB182B324FB61D108A94BB2C8E3FB",
        "B96ADAB760D7F4681D4F42A3DE394DF4AE56EDE76372BB190B07A7C8EE0A6D709E02FCE1CDF7E2ECC03404CD28342F61",
        "9172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC2EC22005C58EF1837D1683B2C6F34A26C1B2EFFA",
        "886B4238611FCFDCDE355B3B6519035BBC34F4DEF99C023861B46FC9D6E6C9077AD91D2691F7F7EE598CB0FAC186D91C",
        "AEFE130985139270B4130C93BC437944F4FD4452E2D74DD364F2E21E71F54BFF5CAE82AB9C9DF69EE86D2BC522363A0D",
        "ABC521979B0DEADA1DBF9A42D5C4484E0ABCD06BFA53DDEF3C1B20EE3FD59D7C25E41D2B669E1EF16E6F52C3164DF4FB",
        "7930E9E4E58857B6AC7D5F42D69F6D187763CF1D5503400487F55BA57E31CC7A7135C886EFB4318AED6A1E012D9E6832",
        "A907600A918130C46DC778F971AD0038092999A333CB8B7A1A1DB93D7140003C2A4ECEA9F98D0ACC0A8291CDCEC97DCF",
        "8EC9B55A7F88A46B4DB5A851F44182E1C68A007E5E655F6AFFFFFFFFFFFFFFFF",
    );
    pub const FFDHE6144: &str = concat!(
        "FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695A9E13641146433FBCC939DCE249B3EF9",
        "7D2FE363630C75D8F681B202AEC4617AD3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3B557135E7F57C935",
        "984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797ABC0AB182B324FB61D108A94BB2C8E3FB",
        "B96ADAB760D7F4681D4F42A3DE394DF4AE56EDE76372BB190B07A7C8EE0A6D709E02FCE1CDF7E2ECC03404CD28342F61",
        "9172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC2EC22005C58EF1837D1683B2C6F34A26C1B2EFFA",
        "886B4238611FCFDCDE355B3B6519035BBC34F4DEF99C023861B46FC9D6E6C9077AD91D2691F7F7EE598CB0FAC186D91C",
        "AEFE130985139270B4130C93BC437944F4FD4452E2D74DD364F2E21E71F54BFF5CAE82AB9C9DF69EE86D2BC522363A0D",
        "ABC521979B0DEADA1DBF9A42D5C4484E0ABCD06BFA53DDEF3C1B20EE3FD59D7C25E41D2B669E1EF16E6F52C3164DF4FB",
        "7930E9E4E58857B6AC7D5F42D69F6D187763CF1D5503400487F55BA57E31CC7A7135C886EFB4318AED6A1E012D9E6832",
        "A907600A918130C46DC778F971AD0038092999A333CB8B7A1A1DB93D7140003C2A4ECEA9F98D0ACC0A8291CDCEC97DCF",
        "8EC9B55A7F88A46B4DB5A851F44182E1C68A007E5E0DD9020BFD64B645036C7A4E677D2C38532A3A23BA4442CAF53EA6",
        "3BB454329B7624C8917BDD64B1C0FD4CB38E8C334C701C3ACDAD0657FCCFEC719B1F5C3E4E46041F388147FB4CFDB477",
        "A52471F7A9A96910B855322EDB6340D8A00EF092350511E30ABEC1FFF9E3A26E7FB29F8C183023C3587E38DA0077D9B4",
        "763E4E4B94B2BBC194C6651E77CAF992EEAAC0232A281BF6B3A739C1226116820AE8DB5847A67CBEF9C9091B462D538C",
        "D72B03746AE77F5E62292C311562A846505DC82DB854338AE49F5235C95B91178CCF2DD5CACEF403EC9D1810C6272B04",
        "5B3B71F9DC6B80D63FDD4A8E9ADB1E6962A69526D43161C1A41D570D7938DAD4A40E329CD0E40E65FFFFFFFFFFFFFFFF",
    );
    pub const FFDHE8192: &str = concat!(
        "FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695A9E13641146433FBCC939DCE249B3EF9",
        "7D2FE363630C75D8F681B202AEC4617AD3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3B557135E7F57C935",
        "984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797ABC0AB182B324FB61D108A94BB2C8E3FB",
        "B96ADAB760D7F4681D4F42A3DE394DF4AE56EDE76372BB190B07A7C8EE0A6D709E02FCE1CDF7E2ECC03404CD28342F61",
        "9172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC2EC22005C58EF1837D1683B2C6F34A26C1B2EFFA",
        "886B4238611FCFDCDE355B3B6519035BBC34F4DEF99C023861B46FC9D6E6C9077AD91D2691F7F7EE598CB0FAC186D91C",
        "AEFE130985139270B4130C93BC437944F4FD4452E2D74DD364F2E21E71F54BFF5CAE82AB9C9DF69EE86D2BC522363A0D",
        "ABC521979B0DEADA1DBF9A42D5C4484E0ABCD06BFA53DDEF3C1B20EE3FD59D7C25E41D2B669E1EF16E6F52C3164DF4FB",
        "7930E9E4E58857B6AC7D5F42D69F6D187763CF1D5503400487F55BA57E31CC7A7135C886EFB4318AED6A1E012D9E6832",
        "A907600A918130C46DC778F971AD0038092999A333CB8B7A1A1DB93D7140003C2A4ECEA9F98D0ACC0A8291CDCEC97DCF",
        "8EC9B55A7F88A46B4DB5A851F44182E1C68A007E5E0DD9020BFD64B645036C7A4E677D2C38532A3A23BA4442CAF53EA6",
        "3BB454329B7624C8917BDD64B1C0FD4CB38E8C334C701C3ACDAD0657FCCFEC719B1F5C3E4E46041F388147FB4CFDB477",
        "A52471F7A9A96910B855322EDB6340D8A00EF092350511E30ABEC1FFF9E3A26E7FB29F8C183023C3587E38DA0077D9B4",
        "763E4E4B94B2BBC194C6651E77CAF992EEAAC0232A281BF6B3A739C1226116820AE8DB5847A67CBEF9C9091B462D538C",
        "D72B03746AE77F5E62292C311562A846505DC82DB854338AE49F5235C95B91178CCF2DD5CACEF403EC9D1810C6272B04",
        "5B3B71F9DC6B80D63FDD4A8E9ADB1E6962A69526D43161C1A41D570D7938DAD4A40E329CCFF46AAA36AD004CF600C838",
        "1E425A31D951AE64FDB23FCEC9509D43687FEB69EDD1CC5E0B8CC3BDF64B10EF86B63142A3AB8829555B2F747C932665",
        "CB2C0F1CC01BD70229388839D2AF05E454504AC78B7582822846C0BA35C35F5C59160CC046FD8251541FC68C9C86B022",
        "BB7099876A460E7451A8A93109703FEE1C217E6C3826E52C51AA691E0E423CFC99E9E31650C1217B624816CDAD9A95F9",
        "D5B8019488D9C0A0A1FE3075A577E23183F81D4A3F2FA4571EFC8CE0BA8A4FE8B6855DFE72B0A66EDED2FBABFBE58A30",
        "FAFABE1C5D71A87E2F741EF8C1FE86FEA6BBFDE530677F0D97D11D49F7A8443D0822E506A9F4614E011E2A94838FF88C",
        "D68C8BB7C5C6424CFFFFFFFFFFFFFFFF",
    );
}
use primes::{FFDHE2048, FFDHE3072, FFDHE4096, FFDHE6144, FFDHE8192};

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of each prime, computed apart: by the formula of RFC 7919 appendix A in Python's integers, and compared with
    /// the parameters that `openssl genpkey -genparam -pkeyopt group:ffdhe2048` writes.
    #[test]
    fn the_primes_are_those_of_the_rfc() {
        let known = [
            (Group::Ffdhe2048, "9cd3b7f336872f46c09428d1bbc19877a4d440512cda8d1c1cf0cd6e33698966"),
            (Group::Ffdhe3072, "0eaf67db3a839156d5013494a5318a772b5697d270d721f37f092efc69ea5a17"),
            (Group::Ffdhe4096, "4648414224ac881b3d0dc59b466f96d06a558278776807797ecf1f66ff397b3e"),
            (Group::Ffdhe6144, "227ac9066b3ddd9e193670cda2388fa884f65ba0cf98b742d1fe77a6687c79c7"),
            (Group::Ffdhe8192, "770b14efaf6f049929c523113b3fa99a8d11dab1b18af3609590122075d19833"),
        ];
        for (group, expected) in known {
            let prime = BigNum::from_hex_str(prime(group).expect("not the null group")).expect("hexadecimal");
            let bytes = prime.to_vec();
            assert_eq!(bytes.len(), group.bytes());
            assert_eq!(super::super::suite::hex(&openssl::sha::sha256(&bytes)), expected, "{group:?}");
        }
    }

    #[test]
    fn both_ends_come_to_the_same_secret_at_full_length() {
        for group in Group::ALL {
            let ours = Exchange::new(group).expect("an exponent");
            let theirs = Exchange::new(group).expect("an exponent");
            let (Some(ours), Some(theirs)) = (ours, theirs) else {
                assert_eq!(group, Group::Null);
                continue;
            };
            let one = ours.shared(theirs.public()).expect("computed").expect("a value of the group");
            let two = theirs.shared(ours.public()).expect("computed").expect("a value of the group");
            assert!(one == two && one.len() == group.bytes(), "{group:?}");
        }
    }

    /// The exponent 512 makes the value 2^512: all its leading bytes are zeroes, and they count.
    #[test]
    fn leading_zero_bytes_are_kept() {
        let prime = || BigNum::from_hex_str(FFDHE2048).expect("hexadecimal");
        let small = |value| BigNum::from_u32(value).expect("a number");
        let ours = Exchange::with(prime(), small(512), 256).expect("computed");
        assert_eq!((ours.public().len(), ours.public()[191], ours.public()[192]), (256, 1, 0));
        let other = Exchange::with(prime(), small(1), 256).expect("computed");
        let shared = ours.shared(other.public()).expect("computed").expect("2 is a value of the group");
        assert_eq!(shared.expose(), ours.public());
    }

    #[test]
    fn values_that_would_give_the_secret_away_are_refused() {
        let ours = Exchange::new(Group::Ffdhe2048).expect("an exponent").expect("not the null group");
        let mut last = BigNum::from_hex_str(FFDHE2048).expect("hexadecimal");
        last.sub_word(1).expect("it is odd");
        let prime = BigNum::from_hex_str(FFDHE2048).expect("hexadecimal").to_vec();
        let bad = [vec![], vec![0; 256], vec![1], last.to_vec(), prime, vec![0xFF; 256], vec![2; 257]];
        for value in bad {
            assert!(ours.shared(&value).expect("computed").is_none(), "{} bytes", value.len());
        }
    }
}
