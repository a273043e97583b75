"""A probe for any model when the user gave none: guessed, tried, and mended by what the try said.

    search         the loop: a first guess, a try, the next guess; what is said when none was found
    subject        the model that inputs are wanted for: what forward takes, sizes of its config
    wanted         what is wanted of an input (kind of values, shape), and seeded arrays made of it
    config_sizes   sizes in a config and in the configs inside it
    by_name        what an input is, by its name and the sizes of the config
    media          pixels and audio: shapes, and the placeholder ids that stand for them in a text
    optimum_shapes shapes of pixels and waves that optimum knows
    documented     shapes that a forward's own documentation states
    plain          a module without a config: read off its first layer
    failures       a try that failed: its message, and what stood in the frames it passed through
    layers         the layer that refused a tensor, and what it takes instead
    shape_rules    what messages say about shapes and lengths
    image_rules    what messages say about the sides of images
    missing        inputs, and ids among them, that a failure asks for by name
    repair         the next guess, made of a failure: every rule, in order

No rule knows a model by its name.
"""
