// SPDX-License-Identifier: GPL-2.0

//! Half-open connections: those of which a server does not know yet whose they are. Anybody may
//! ask for one, and each takes memory and a queue pair; so they have places of their own, and this
//! decides who gets one.
//!
//! A *source* is an address that replies go to. It can be invented, but who has invented one does
//! not receive what is sent there: when places get scarce, a source has to show a *cookie* which it
//! was sent. Then each source has a rate and a number of places, and one from which a client
//! was admitted has more of both. Who stays for long without a login gives way to who comes.

#![forbid(unsafe_code)]

use core::ops::DerefMut;

/// Half-open connections at a time.
pub const PLACES_MAX: usize = 64;
/// Sources that are remembered.
pub const SOURCES_MAX: usize = 128;
/// Places that only a known source may have.
const RESERVED: usize = 16;
/// Places in all, and of one source, that are given without a cookie.
const COOKIES_FROM: usize = 16;
const OWN_COOKIES_FROM: usize = 4;
/// Places of one source that is not known.
const OWN_MAX: usize = 8;
/// A connection that is younger, in ms, gives way to none: a login takes less.
const AGE_MIN_MS: u64 = 1000;
/// Connections of a source in a second, and at once, that shows cookies.
const RATE: u64 = 32;
const BURST: u64 = 32;
/// How many times as much a known source may have.
const KNOWN_FACTOR: u64 = 8;

/// An address that replies go to.
pub type Source = [u8; 16];
/// The number of a connection.
pub type ConnectionId = u64;

/// The place of a half-open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    id: ConnectionId,
    source: Source,
    since_ms: u64,
}

/// What is known of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    source: Source,
    /// A client was admitted that came from there.
    admitted: bool,
    /// Thousandths of connections that it may have at once.
    tokens: u64,
    /// When that was so.
    at_ms: u64,
}

/// What becomes of a connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has a place.
    Enter,
    /// It has to come again, with a cookie. If there is a connection here, that has to end.
    Again(Option<ConnectionId>),
}

/// The half-open connections of a port, in memory of the caller's.
#[derive(Clone, Debug)]
pub struct HalfOpen<P, S> {
    places: P,
    sources: S,
}

impl<P, S> HalfOpen<P, S>
where
    P: DerefMut<Target = [Option<Place>]>,
    S: DerefMut<Target = [Option<Known>]>,
{
    /// Makes a list without a connection. `places` has [`PLACES_MAX`] entries, `sources` has
    /// [`SOURCES_MAX`]; all are `None`.
    pub fn new(places: P, sources: S) -> Self {
        Self { places, sources }
    }

    /// Decides on a request from `source` at `now_ms`, which shows a right cookie if `has_cookie`.
    /// If it may enter, its number is `id` from then on.
    pub fn ask(
        &mut self,
        id: ConnectionId,
        source: &Source,
        has_cookie: bool,
        now_ms: u64,
    ) -> Answer {
        let own = self.taken(|place| place.source == *source).count();
        let all = self.taken(|_| true).count();
        // What comes without a cookie must not take anything from the source that it names.
        if !has_cookie && (all >= COOKIES_FROM || own >= OWN_COOKIES_FROM) {
            return Answer::Again(None);
        }
        let known = self.is_known(source);
        if has_cookie && !self.take_token(source, now_ms) {
            return Answer::Again(None);
        }
        if !known && own >= OWN_MAX {
            return Answer::Again(self.oldest(now_ms, |place| place.source == *source));
        }
        let max = match known {
            true => self.places.len(),
            false => self.places.len().saturating_sub(RESERVED),
        };
        if all >= max {
            return Answer::Again(self.oldest(now_ms, |_| true));
        }
        match self.places.iter_mut().find(|place| place.is_none()) {
            Some(place) => {
                *place = Some(Place {
                    id,
                    source: *source,
                    since_ms: now_ms,
                });
                Answer::Enter
            }
            None => Answer::Again(None),
        }
    }

    /// Notes that the client of a connection is admitted to an export: it is not half-open any
    /// more, and its source is known.
    pub fn admit(&mut self, id: ConnectionId, now_ms: u64) {
        if let Some(place) = self.leave(id) {
            if let Some(known) = self.source(&place.source, now_ms) {
                known.admitted = true;
            }
        }
    }

    /// Notes that a connection has ended.
    pub fn leave(&mut self, id: ConnectionId) -> Option<Place> {
        let mut places = self.places.iter_mut();
        places
            .find(|place| place.is_some_and(|place| place.id == id))?
            .take()
    }

    /// Returns how many connections are half-open.
    pub fn count(&self) -> usize {
        self.taken(|_| true).count()
    }

    fn taken(&self, which: impl Fn(&Place) -> bool) -> impl Iterator<Item = &Place> {
        self.places
            .iter()
            .flatten()
            .filter(move |place| which(place))
    }

    /// Returns the connection that has been here for longest, of those that are not young.
    fn oldest(&self, now_ms: u64, which: impl Fn(&Place) -> bool) -> Option<ConnectionId> {
        let old = |place: &Place| now_ms.saturating_sub(place.since_ms) >= AGE_MIN_MS;
        let all = self.taken(|place| which(place) && old(place));
        all.min_by_key(|place| place.since_ms).map(|place| place.id)
    }

    fn is_known(&self, source: &Source) -> bool {
        let mut all = self.sources.iter().flatten();
        all.any(|known| known.source == *source && known.admitted)
    }

    /// Returns what is known of a source; another one may be forgotten for it: that of which
    /// nothing was heard for longest, and rather one from which nobody was admitted.
    fn source(&mut self, source: &Source, now_ms: u64) -> Option<&mut Known> {
        let is_it = |known: &Option<Known>| known.is_some_and(|known| known.source == *source);
        let at = match self.sources.iter().position(is_it) {
            Some(at) => at,
            None => {
                let worth =
                    |known: &Option<Known>| known.map(|known| (known.admitted, known.at_ms));
                let all = self.sources.iter().enumerate();
                let (at, _) = all.min_by_key(|(_, known)| worth(known))?;
                *self.sources.get_mut(at)? = Some(Known {
                    source: *source,
                    admitted: false,
                    tokens: BURST * 1000,
                    at_ms: now_ms,
                });
                at
            }
        };
        self.sources.get_mut(at)?.as_mut()
    }

    /// Takes one of the connections that a source may have now. Returns false if there is none.
    fn take_token(&mut self, source: &Source, now_ms: u64) -> bool {
        let Some(known) = self.source(source, now_ms) else {
            return false;
        };
        let factor = if known.admitted { KNOWN_FACTOR } else { 1 };
        // A thousandth of a connection in a millisecond is one in a second.
        let more = now_ms
            .saturating_sub(known.at_ms)
            .saturating_mul(RATE * factor);
        let tokens = known.tokens.saturating_add(more).min(BURST * factor * 1000);
        known.at_ms = now_ms;
        let left = tokens.checked_sub(1000);
        known.tokens = left.unwrap_or(tokens);
        left.is_some()
    }
}
