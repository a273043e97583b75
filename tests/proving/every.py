"""All families: importing this registers them, in an order that chance depends on."""

from importlib import import_module

for _name in (
    *("honest.runtimes", "honest.rewrites", "honest.attention", "honest.forms", "honest.machine"),
    *("honest.nets", "honest.structure", "honest.outputs", "honest.ports", "honest.steps"),
    *("faults.weights", "faults.heads", "faults.attention", "faults.porting", "faults.images"),
    *("faults.outputs", "faults.several", "faults.arithmetic", "faults.lies", "faults.doubtful"),
):
    import_module(f".{_name}", __package__)
