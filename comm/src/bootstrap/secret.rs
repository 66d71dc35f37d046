//! The job's secret: whoever opens a connection proves that it knows it, without showing it.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::CommError;

/// 32 random bytes that every rank of a job knows, and nobody else. Its `Debug` does not show them.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// A fresh one from the operating system's generator.
    ///
    /// # Errors
    /// [`CommError::System`] if that has none.
    pub fn random() -> Result<Self, CommError> {
        random_bytes().map(Self)
    }

    /// For a job of one rank, in which nothing listens.
    pub(crate) fn unused() -> Self {
        Self([0; 32])
    }

    /// Reads 64 hexadecimal digits; `None` for anything else.
    #[must_use]
    pub fn from_hex(digits: &str) -> Option<Self> {
        let digits = digits.as_bytes();
        let mut bytes = [0; 32];
        if digits.len() != 64 {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let nibble = |digit: u8| char::from(digit).to_digit(16);
            *byte = u8::try_from(nibble(pair[0])? * 16 + nibble(pair[1])?).ok()?;
        }
        Some(Self(bytes))
    }

    /// The 64 digits that [`from_hex`](Self::from_hex) reads. Whoever has them is a member of the job.
    #[must_use]
    pub fn to_hex(&self) -> String {
        use fmt::Write;
        self.0.iter().fold(String::with_capacity(64), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// The secret of one job, made out of this one: who has another job's does not get in.
    pub(crate) fn for_job(&self, job: &str) -> Self {
        Self(self.tag(&[b"job", job.as_bytes()]))
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        // HMAC takes a key of any length, so this cannot fail; were it to, the tag of an empty key would verify nowhere.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).unwrap_or_else(|_| Hmac::new(&Default::default()));
        for part in parts {
            // The length before each part: no two lists of parts have the same bytes.
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }

    /// The proof, for these parts, that the secret is known.
    pub(crate) fn tag(&self, parts: &[&[u8]]) -> [u8; 32] {
        self.mac(parts).finalize().into_bytes().into()
    }

    /// Whether `tag` is the proof for these parts; takes the same time whatever the answer.
    pub(crate) fn verifies(&self, parts: &[&[u8]], tag: &[u8]) -> bool {
        self.mac(parts).verify_slice(tag).is_ok()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Random bytes from the operating system's generator.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], CommError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| CommError::System {
        what: format!("{N} random bytes from the operating system"),
        reason: error.to_string(),
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_hmac_sha256_and_binds_every_part() {
        // RFC 4231 has no case with this framing; the independent value is from Python's hmac module:
        // hmac.new(bytes(range(32)), (1).to_bytes(8,'little')+b'a'+(2).to_bytes(8,'little')+b'bc', 'sha256').hexdigest()
        let digits: String = (0..32).map(|byte| format!("{byte:02x}")).collect();
        let secret = Secret::from_hex(&digits).expect("64 digits");
        assert_eq!(secret.to_hex(), digits);
        let tag = secret.tag(&[b"a", b"bc"]);
        assert_eq!(Secret(tag).to_hex(), "c3c9c3696dc367b58a693eb7dfa40171f48959648a28e1eeaf0d6225de005f6d");
        assert!(secret.verifies(&[b"a", b"bc"], &tag));
        assert!(!secret.verifies(&[b"ab", b"c"], &tag));
        assert!(!secret.verifies(&[b"a", b"bc"], &tag[..31]));
        let other = Secret::random().expect("random");
        assert!(!other.verifies(&[b"a", b"bc"], &tag));
        assert!(Secret::from_hex("12").is_none() && Secret::from_hex(&"+f".repeat(32)).is_none());
        assert_eq!(format!("{other:?}"), "Secret(..)");
    }
}
