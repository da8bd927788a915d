// Numbers whose ascending order is the order of a sort. `key(i)` is higher for elements that come first.

fn run(element: u32) {
    store_y(element, ~key(params.x_offset + element));
}
