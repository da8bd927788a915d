// The work item of a workgroup or thread of attention: a block of QUERIES queries of a head, and a chunk of COLUMNS
// columns of the values.

struct Place {
    batch: u32,
    head: u32,
    /// The first query of the block.
    query: u32,
    /// The first column of the chunk.
    column: u32,
    /// Offset of the head in each operand.
    q: u32,
    k: u32,
    v: u32,
}

/// The work item of a block and a chunk, by their indices. Heads are counted over all batches.
fn place_at(chunk: u32, block: u32, heads: u32) -> Place {
    let head = heads % params.heads;
    let batch = heads / params.heads;
    let group = head * params.groups / params.heads;
    return Place(
        batch,
        head,
        block * QUERIES,
        chunk * COLUMNS,
        params.q_offset + batch * u32(params.q_batch) + head * u32(params.q_head),
        params.k_offset + batch * u32(params.k_batch) + group * u32(params.k_head),
        params.v_offset + batch * u32(params.v_batch) + group * u32(params.v_head),
    );
}

/// The work item with index `work`. The chunks of a block are consecutive.
fn place_of(work: u32) -> Place {
    let blocks = work / params.chunks;
    return place_at(work % params.chunks, blocks % params.blocks, blocks / params.blocks);
}
