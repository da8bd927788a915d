// Pools regions of interest: a thread for each cell of each channel of each region. `pool_cell` is the kind's.
fn run(thread: u32) {
    let column = thread % params.out_width;
    let row = (thread / params.out_width) % params.out_height;
    let plane = thread / (params.out_width * params.out_height);
    let c = plane % params.channels;
    let region = plane / params.channels;
    let picture = load_pictures(params.pictures_offset + region);
    if picture < 0 || picture >= i32(params.batch) {
        atomicAdd(&faults[0], 1u);
    }
    let n = u32(clamp(picture, 0, i32(params.batch) - 1));
    let x = params.x_offset + (n * params.channels + c) * params.height * params.width;
    let at = params.regions_offset + region * 4u;
    let scale = bitcast<f32>(params.scale);
    let bounds = vec4<f32>(load_regions(at), load_regions(at + 1u), load_regions(at + 2u), load_regions(at + 3u)) * scale;
    store_y(thread, pool_cell(x, bounds, row, column));
}
