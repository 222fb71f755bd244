"""Machines: descriptions, sysfs trees and published topologies."""
