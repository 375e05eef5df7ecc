// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of replies.

use super::*;

const CAPS: RequestCaps = RequestCaps {
    qp: QpCaps {
        large: 1,
        ..super::CAPS
    },
    regions: 1,
    region_pages: 64,
    large_regions: 0,
    large_region_pages: 0,
};

#[kernel::macros::kunit_tests(farblk_rdma_reply)]
mod tests {
    use super::*;

    #[test]
    fn brings_the_data_with_the_message() -> Result {
        with_pair(CAPS, |pair| {
            // One work request, as many segments as it takes, and more.
            for pieces in [1, 2, 31, 32, 33, 120].map(|pieces| most_pieces(&pair, pieces)) {
                let theirs = Block::new(1, 64 * PAGE_SIZE, 0)?;
                let ours = Block::new(pieces, 512, 5)?;
                posted(pair.near.qp.recv(pair.answer()?))?;
                posted(pair.far.qp.recv(pair.landing(0, 64)?))?;
                let range = pair.request(0, Carry::Access(RdmaOp::Write), &theirs, true)?;
                pair.requested()?;
                let owner = Owner {
                    block: Some(ours),
                    ..pair.message(0, 1, 0)?
                };
                let reply = Reply {
                    write: Some(range),
                    invalidate: Some(range.rkey),
                    ..Reply::default()
                };
                let landing = pair.replied(reply, owner)?;
                check!(landing.invalidated);
                check!(pair.near.events.sends.take()?.1.is_ok());
                check!(is_full_of(&theirs.memory, pieces * 512, 5));
                check!(!is_full_of(&theirs.memory, pieces * 512 + 1, 5));
            }
            Ok(())
        })
    }

    #[test]
    fn is_given_back_when_it_is_refused() -> Result {
        with_pair(CAPS, |pair| {
            let qp = &pair.far.qp;
            let remote = RemoteRange { addr: 0, rkey: 0 };
            let reply = Reply {
                write: Some(remote),
                ..Reply::default()
            };
            let error = |result: Result<(), (Error, Owner)>| posted(result).err();
            // No message, nothing to write, more than all credits.
            check!(error(qp.reply(0, Reply::default(), pair.owner(0), true)) == Some(EINVAL));
            check!(error(qp.reply(0, reply, pair.message(0, 1, 0)?, true)) == Some(EINVAL));
            let owner = Owner {
                block: Some(Block::new(8 * 32, 512, 0)?),
                ..pair.message(0, 1, 0)?
            };
            check!(error(qp.reply(0, reply, owner, true)) == Some(EINVAL));
            let owner = Owner {
                message: None,
                ..pair.reply(0, 512, 0)?
            };
            check!(error(qp.reply(0, reply, owner, true)) == Some(EINVAL));
            check!(qp.posted() == 0 && pair.alive.load(Relaxed) == 0);
            Ok(())
        })
    }

    #[test]
    fn fails_whole_if_the_data_cannot_be_written() -> Result {
        with_pair(CAPS, |pair| {
            posted(pair.near.qp.recv(pair.landing(0, 64)?))?;
            let reply = Reply {
                write: Some(RemoteRange { addr: 1, rkey: 0 }),
                ..Reply::default()
            };
            posted(pair.far.qp.reply(0, reply, pair.reply(0, 512, 0)?, true))?;
            let (_, result) = pair.far.events.sends.take()?;
            check!(result.err().map(WcError::to_error) == Some(EACCES));
            // The message was not sent.
            let (_, result) = pair.near.events.recvs.take()?;
            check!(result.is_err());
            Ok(())
        })
    }
}
