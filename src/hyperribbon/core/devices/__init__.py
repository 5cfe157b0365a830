"""The machine under the tensors: devices, memory, processes, what torch keeps to itself."""
