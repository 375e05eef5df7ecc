// SPDX-License-Identifier: GPL-2.0

//! KUnit suite of memory regions.

use super::*;

const CAPS: QpCaps = QpCaps {
    slots: 1,
    send_wr: 4,
    recv_wr: 1,
    ..super::CAPS
};

#[kernel::macros::kunit_tests(farblk_rdma_mr)]
mod tests {
    use super::*;

    #[test]
    fn is_reached_until_it_is_dropped() -> Result {
        with_pair(CAPS, |pair| {
            let ours = Block::new(1, PAGE_SIZE, 1)?;
            let theirs = Block::new(1, PAGE_SIZE, 2)?;
            let (mr, remote) = pair.target(&theirs)?;
            check!(pair.rdma(RdmaOp::Write, &ours, remote)?.is_ok());
            check!(is_full_of(&theirs.memory, PAGE_SIZE, 1));
            fill(&theirs.memory, PAGE_SIZE, 3);
            check!(pair.rdma(RdmaOp::Read, &ours, remote)?.is_ok());
            check!(is_full_of(&ours.memory, PAGE_SIZE, 3));

            drop(mr);
            fill(&ours.memory, PAGE_SIZE, 4);
            let result = pair.rdma(RdmaOp::Write, &ours, remote)?;
            check!(result.err().map(WcError::to_error) == Some(EACCES));
            check!(is_full_of(&theirs.memory, PAGE_SIZE, 3));
            Ok(())
        })
    }

    #[test]
    fn is_not_reached_before_it_is_registered() -> Result {
        with_pair(CAPS, |pair| {
            let ours = Block::new(1, PAGE_SIZE, 1)?;
            let theirs = Block::new(1, PAGE_SIZE, 2)?;
            let mr = pair.region(&theirs, Access::RemoteReadWrite)?;
            check!(mr.remote().is_none());
            // SAFETY: The region is valid.
            let addr = unsafe { (*mr.as_raw()).iova };
            let guess = RemoteRange {
                addr,
                rkey: mr.key(),
            };
            check!(pair.rdma(RdmaOp::Write, &ours, guess)?.is_err());
            check!(is_full_of(&theirs.memory, PAGE_SIZE, 2));
            Ok(())
        })
    }

    #[test]
    fn is_not_registered_when_that_is_flushed() -> Result {
        with_pair(CAPS, |pair| {
            let mut owner = pair.owner(1);
            let block = Block::new(1, PAGE_SIZE, 0)?;
            owner.mr = Some(pair.region(&block, Access::RemoteReadWrite)?);
            // The queue pair is in error, but does not know it.
            pair.far.id.disconnect();
            posted(pair.far.qp.reg_mr(0, owner, true))?;
            let (owner, result) = pair.far.events.sends.take()?;
            check!(result.is_err());
            let mr = owner.mr.as_ref().ok_or(EIO)?;
            check!(mr.remote().is_none());
            Ok(())
        })
    }

    #[test]
    fn lets_peers_do_what_was_granted_only() -> Result {
        with_pair(CAPS, |pair| {
            let ours = Block::new(1, PAGE_SIZE, 1)?;
            let theirs = Block::new(1, PAGE_SIZE, 2)?;
            let mr = pair.register(pair.region(&theirs, Access::RemoteRead)?)?;
            let remote = mr.remote().ok_or(EIO)?;
            check!(pair.rdma(RdmaOp::Read, &ours, remote)?.is_ok());
            check!(is_full_of(&ours.memory, PAGE_SIZE, 2));
            fill(&ours.memory, PAGE_SIZE, 1);
            let result = pair.rdma(RdmaOp::Write, &ours, remote)?;
            check!(result.err().map(WcError::to_error) == Some(EACCES));
            check!(is_full_of(&theirs.memory, PAGE_SIZE, 2));
            Ok(())
        })
    }

    #[test]
    fn ends_where_its_memory_ends() -> Result {
        with_pair(CAPS, |pair| {
            let ours = Block::new(1, PAGE_SIZE, 1)?;
            let theirs = Block::new(2, PAGE_SIZE, 2)?;
            let (_mr, remote) = pair.target(&theirs)?;
            let at = |offset: usize| RemoteRange {
                addr: remote.addr + offset as u64,
                ..remote
            };
            check!(pair.rdma(RdmaOp::Write, &ours, at(PAGE_SIZE))?.is_ok());
            check!(is_full_of(&theirs.memory, PAGE_SIZE, 2));
            let result = pair.rdma(RdmaOp::Write, &ours, at(PAGE_SIZE + 1))?;
            check!(result.err().map(WcError::to_error) == Some(EACCES));
            check!(is_full_of(&theirs.memory, PAGE_SIZE, 2));
            Ok(())
        })
    }

    #[test]
    fn keeps_its_memory() -> Result {
        with_pair(CAPS, |pair| {
            let ours = Block::new(1, PAGE_SIZE, 0)?;
            let memory = PageChunks::alloc(PAGE_SIZE, NumaNode::NO_NODE)?;
            fill(&memory, PAGE_SIZE, 5);
            let direction = Direction::Bidirectional;
            let mapping = SgMapping::map(pair.pd.device(), &memory, 0, PAGE_SIZE, direction)?;
            let mr = pair.register(Mr::alloc(&pair.pd, &mapping, Access::RemoteRead)?)?;
            let remote = mr.remote().ok_or(EIO)?;
            // Nobody but the region holds the mapping, and nobody but that the memory.
            let still = mapping.clone();
            drop(mapping);
            check!(!last(still));
            check!(pair.rdma(RdmaOp::Read, &ours, remote)?.is_ok());
            check!(is_full_of(&ours.memory, PAGE_SIZE, 5));
            drop(mr);
            check!(last(memory));
            Ok(())
        })
    }

    #[test]
    fn refuses_a_mapping_for_less_and_lets_go_of_it() -> Result {
        with_pair(CAPS, |pair| {
            let memory = PageChunks::alloc(PAGE_SIZE, NumaNode::NO_NODE)?;
            for (direction, access) in [
                (Direction::ToDevice, Access::RemoteReadWrite),
                (Direction::FromDevice, Access::RemoteReadWrite),
                (Direction::FromDevice, Access::RemoteRead),
            ] {
                let mapping = SgMapping::map(pair.pd.device(), &memory, 0, PAGE_SIZE, direction)?;
                check!(Mr::alloc(&pair.pd, &mapping, access).err() == Some(EINVAL));
                check!(last(mapping));
            }
            let direction = Direction::ToDevice;
            let mapping = SgMapping::map(pair.pd.device(), &memory, 0, PAGE_SIZE, direction)?;
            drop(Mr::alloc(&pair.pd, &mapping, Access::RemoteRead)?);
            check!(last(mapping) && last(memory));
            Ok(())
        })
    }

    #[test]
    fn has_an_address_and_a_key_of_its_own() -> Result {
        with_pair(CAPS, |pair| {
            let block = Block::new(3, PAGE_SIZE, 0)?;
            let (_first, first) = pair.target(&block)?;
            let (_second, second) = pair.target(&block)?;
            check!(first.rkey != second.rkey && first.addr != second.addr);
            let align = block.len.next_power_of_two() as u64;
            check!(first.addr % align == 0 && second.addr % align == 0);
            check!(first.addr.checked_add(align).is_some());
            Ok(())
        })
    }

    #[test]
    fn begins_where_a_page_of_the_device_begins() -> Result {
        with_pair(CAPS, |pair| {
            // One chunk, of which a part is used.
            let memory = PageChunks::alloc(64 * PAGE_SIZE, NumaNode::NO_NODE)?;
            let direction = Direction::ToDevice;
            let mapping = SgMapping::map(pair.pd.device(), &memory, 0, PAGE_SIZE, direction)?;
            let page = mapping.page_size() as u64;
            for _ in 0..16 {
                let mr = Mr::alloc(&pair.pd, &mapping, Access::RemoteRead)?;
                check!(mr.iova() % page == 0);
            }
            check!(page > PAGE_SIZE as u64);
            Ok(())
        })
    }
}
