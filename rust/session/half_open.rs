// SPDX-License-Identifier: GPL-2.0

//! Half-open connections: those without a login, of which a server does not know yet whose they
//! are. Anybody may ask for one, and each takes memory and a queue pair; so they have places of
//! their own, and this decides who gets one.
//!
//! A *source* is an address that replies go to. It can be invented, but who has invented one does
//! not receive what is sent there: when places get scarce, a source has to show a *cookie* which it
//! was sent. Then each source has a rate and a number of places, and one from which a client has
//! logged in has more of both. Who stays for long without a login gives its place to who comes.

#![forbid(unsafe_code)]

use core::cmp::Reverse;
use core::ops::DerefMut;

/// Half-open connections at a time.
const HELD_MAX: usize = 64;
/// Connections that have given their places away, and have not ended yet.
const LEAVING_MAX: usize = 16;
/// Entries of a list: connections that hold a place, and those that are leaving.
pub const PLACES_MAX: usize = HELD_MAX + LEAVING_MAX;
/// Sources that are remembered.
pub const SOURCES_MAX: usize = 128;
/// Places that only a known source may have.
const RESERVED: usize = 16;
/// Places in all, and of one source, that are given without a cookie.
const COOKIES_FROM: usize = 16;
const OWN_COOKIES_FROM: usize = 4;
/// Places of one source that is not known, and of one that is.
const OWN_MAX: usize = 8;
const OWN_MAX_KNOWN: usize = 16;
/// A connection that is younger, in ms, gives way to none: a login takes less.
const AGE_MIN_MS: u64 = 1000;
/// Connections of a source in a second, and at once, that shows cookies.
const RATE: u64 = 32;
const BURST: u64 = 32;
/// How many times as many a known source may have.
const KNOWN_FACTOR: u64 = 8;

/// An address that replies go to: a GID, and the address on the link that packets for it are sent
/// to.
pub type Source = [u8; 24];
/// The number of a connection.
pub type ConnectionId = u64;

/// The place of a half-open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    id: ConnectionId,
    source: Source,
    since_ms: u64,
    /// The place was given to another connection, and this one is to end.
    leaving: bool,
}

/// What is known of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    source: Source,
    /// A client has logged in that came from there.
    logged_in: bool,
    /// Thousandths of connections that it may have at once.
    tokens: u64,
    /// When that was so.
    at_ms: u64,
    /// When it came last, or was logged in.
    seen_ms: u64,
}

/// What becomes of a connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has a place. If it is that of a connection here, that one has to end.
    Enter(Option<ConnectionId>),
    /// It has to come again, with a cookie.
    Again,
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
        let (own, all) = (self.held_by(source), self.count());
        // What comes without a cookie must not take anything from the source that it names.
        if !has_cookie && (all >= COOKIES_FROM || own >= OWN_COOKIES_FROM) {
            return Answer::Again;
        }
        let (own_max, all_max) = match self.is_known(source) {
            true => (OWN_MAX_KNOWN, HELD_MAX),
            false => (OWN_MAX, HELD_MAX - RESERVED),
        };
        let Some(free) = self.places.iter().position(Option::is_none) else {
            return Answer::Again;
        };
        let end = if own >= own_max {
            self.eldest_of(source, now_ms)
        } else if all >= all_max {
            self.least(source, now_ms)
        } else {
            None
        };
        if end.is_none() && (own >= own_max || all >= all_max) {
            return Answer::Again;
        }
        // A request that is sent away costs the source nothing.
        if has_cookie && !self.take_token(source, now_ms) {
            return Answer::Again;
        }
        for place in self.places.iter_mut().flatten() {
            place.leaving |= Some(place.id) == end;
        }
        if let Some(place) = self.places.get_mut(free) {
            *place = Some(Place {
                id,
                source: *source,
                since_ms: now_ms,
                leaving: false,
            });
        }
        Answer::Enter(end)
    }

    /// Notes that the client of a connection has logged in: the connection is not half-open any
    /// more, and its source is known.
    pub fn log_in(&mut self, id: ConnectionId, now_ms: u64) {
        if let Some(place) = self.leave(id) {
            self.know(&place.source, now_ms);
        }
    }

    /// Notes that a client is, or was until now, logged in that came from `source`.
    pub fn know(&mut self, source: &Source, now_ms: u64) {
        if let Some(known) = self.source(source, now_ms) {
            known.logged_in = true;
        }
    }

    /// Notes that a connection has ended.
    pub fn leave(&mut self, id: ConnectionId) -> Option<Place> {
        let mut places = self.places.iter_mut();
        places
            .find(|place| place.is_some_and(|place| place.id == id))?
            .take()
    }

    /// Returns how many connections hold a place.
    pub fn count(&self) -> usize {
        self.held().count()
    }

    fn held(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().flatten().filter(|place| !place.leaving)
    }

    /// Returns how many places a source holds.
    fn held_by(&self, source: &Source) -> usize {
        self.held().filter(|place| place.source == *source).count()
    }

    /// Returns the connection of a source that has been here for longest, unless it is young.
    fn eldest_of(&self, source: &Source, now_ms: u64) -> Option<ConnectionId> {
        let own = self.held().filter(|place| place.source == *source);
        let old = own.filter(|place| place.is_old(now_ms));
        old.min_by_key(|place| place.since_ms).map(|place| place.id)
    }

    /// Returns the connection that has to give way to another one of `source`: of those that are
    /// not young, one of a source that is not known, and of the source that has most. A source
    /// never takes from one that is known if it is not known itself, or has as many already.
    fn least(&self, source: &Source, now_ms: u64) -> Option<ConnectionId> {
        let (known, own) = (self.is_known(source), self.held_by(source));
        let worth = |place: &Place| {
            (
                self.is_known(&place.source),
                Reverse(self.held_by(&place.source)),
                place.since_ms,
            )
        };
        let may_go = |place: &&Place| {
            let theirs = self.held_by(&place.source);
            match (known, self.is_known(&place.source)) {
                (true, false) => true,
                (false, true) => false,
                _ => theirs > own,
            }
        };
        let old = self.held().filter(|place| place.is_old(now_ms));
        let least = old.filter(may_go).min_by_key(|place| worth(place));
        least.map(|place| place.id)
    }

    fn is_known(&self, source: &Source) -> bool {
        let mut all = self.sources.iter().flatten();
        all.any(|known| known.source == *source && known.logged_in)
    }

    /// Returns what is known of a source, which has just come; another one may be forgotten for it:
    /// that of which nothing was heard for longest, and rather one from which nobody has logged in.
    fn source(&mut self, source: &Source, now_ms: u64) -> Option<&mut Known> {
        let is_it = |known: &Option<Known>| known.is_some_and(|known| known.source == *source);
        let at = match self.sources.iter().position(is_it) {
            Some(at) => at,
            None => {
                let worth =
                    |known: &Option<Known>| known.map(|known| (known.logged_in, known.seen_ms));
                let all = self.sources.iter().enumerate();
                let (at, _) = all.min_by_key(|(_, known)| worth(known))?;
                *self.sources.get_mut(at)? = Some(Known {
                    source: *source,
                    logged_in: false,
                    tokens: BURST * 1000,
                    at_ms: now_ms,
                    seen_ms: now_ms,
                });
                at
            }
        };
        let known = self.sources.get_mut(at)?.as_mut()?;
        known.seen_ms = now_ms;
        Some(known)
    }

    /// Takes one of the connections that a source may have now. Returns false if there is none.
    fn take_token(&mut self, source: &Source, now_ms: u64) -> bool {
        let Some(known) = self.source(source, now_ms) else {
            return false;
        };
        let factor = if known.logged_in { KNOWN_FACTOR } else { 1 };
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

impl Place {
    fn is_old(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.since_ms) >= AGE_MIN_MS
    }
}
